"""Turns in one process, over the real engine and a small pool."""

import asyncio
import gc
import random
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentmem.errors import AgentmemError, Cancelled, FailedPrecondition, ResourceExhausted
from agentmem.kv.bits import KVBits
from agentmem.kv.blockfile import BLOCK_TOKENS, FileKind, header_bytes
from agentmem.kv.ledger import NO_VERSION, Ledger
from agentmem.v1 import inference_pb2, types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.generation import TurnJob
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.sequence import Sequence
from inference_service.models.capability import QuantizationSettings
from inference_service.models.loaded import LoadedModel
from inference_service.turns.turn import Turn
from tests.inference_service.directories import written_by
from tests.inference_service.turns.world import TOLERANCE, Answer, Worker, answer, difference, prompt, working
from tests.oracle import Oracle
from tests.tiny_models import write_gemma3, write_llama

directory = written_by([write_llama, write_gemma3])


@pytest.mark.slow
@pytest.mark.parametrize("events", [1, 3])
async def test_a_cancelled_turn_holds_on_to_nothing(llama: Path, tmp_path: Path, events: int) -> None:
    """Its error is no reason to keep what it worked on, and with that a model that has been unloaded."""
    async with working(llama, tmp_path) as worker:
        gc.collect()
        gc.disable()
        try:
            with pytest.raises(Cancelled):
                await answer(worker.start("a", prompt(300), 500), cancel_after=events)
            await worker.at_rest()  # The pass that it was in is taken.
            assert not [each for each in gc.get_objects() if isinstance(each, Turn | TurnJob)]
        finally:
            gc.enable()
            gc.collect()


@pytest.mark.parametrize("ids", [[1 << 20], prompt(9000)], ids=["checked", "planned"])
async def test_a_failed_turn_does_not_keep_its_model(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: list[int]
) -> None:
    """Its stream keeps the error, whose frames would keep a model that is swapped out."""
    models: list[weakref.ref[LoadedModel]] = []
    async with working(llama, tmp_path) as worker:

        @asynccontextmanager
        async def use(model_id: str) -> AsyncIterator[LoadedModel]:
            model = replace(worker.model)
            models.append(weakref.ref(model))
            yield model

        monkeypatch.setattr(worker.runner.models, "use", use)
        gc.disable()
        try:
            turn = worker.start("a", ids)
            with pytest.raises(AgentmemError):
                await answer(turn)
            await worker.idle()
            assert turn.error is not None
            assert [model() for model in models] == [None]
        finally:
            gc.enable()


async def test_kv_that_there_is_no_memory_to_restore_is_not_said_to_be_reused(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(llama, tmp_path) as worker:
        first = await worker.turn("a", ids := prompt(300))
        await worker.idle()

        started = worker.model.arenas.started

        def full(start: Start) -> Sequence:
            if start.tokens:
                raise MemoryError("injected")
            return started(start)

        monkeypatch.setattr(worker.model.arenas, "started", full)
        again = await worker.turn("a", [*ids, *first.token_ids, 7])
        assert (len(again.token_ids), again.reused) == (4, 0)
        assert again.started.cache.miss_reason == types_pb2.MISS_REASON_EVICTED
        await worker.idle()
        monkeypatch.undo()
        assert (await worker.turn("a", [*ids, *first.token_ids, 7, *again.token_ids, 8])).reused == 309
        await worker.idle()


@pytest.mark.slow
@pytest.mark.parametrize(("room", "kept"), [(0, set()), (1, {2399}), (2, {2304, 2399}), (3, {2048, 2304, 2399})])
async def test_a_long_prompt_leaves_as_many_checkpoints_as_there_is_memory_for(
    tmp_path: Path, room: int, kept: set[int]
) -> None:
    """Where there is none it is served all the same, and a checkpoint at its end needs no memory but its window's."""
    directory = write_gemma3(tmp_path / "gemma3")
    async with working(directory, tmp_path, blocks=12, pieces=0, checkpoints=1 + room) as worker:
        ids = prompt(2400)
        first = await worker.turn("a", ids)
        await worker.idle()
        files = [file for name, file in worker.store.files.items() if name.kind == FileKind.WINDOW]
        assert {file.first_token + file.token_count for file in files} == {*kept, 2404}
        assert (await worker.turn("a", [*ids, *first.token_ids, 7])).reused == 2404
        await worker.idle()


@pytest.mark.slow
async def test_memory_for_checkpoints_before_what_is_reused_is_given_back(tmp_path: Path) -> None:
    async with working(write_gemma3(tmp_path / "gemma3"), tmp_path, blocks=24, checkpoints=10) as worker:
        ids = prompt(2400)
        first = await worker.turn("a", ids)
        turn = worker.start("a", [*ids, *first.token_ids, *prompt(200, 1)], 50)
        async for event in turn.events():
            if event.HasField("delta"):
                [reservation] = worker.model.memory.admission._reservations
                assert reservation.checkpoints == 2, "at the end of the prompt, and at the last block before"
        await worker.idle()


async def test_a_hint_is_over_with_the_turn_that_it_is_of(llama: Path, tmp_path: Path) -> None:
    """An agent that was to speak next, and has, is as any other: the next in need of room takes its blocks."""
    async with working(llama, tmp_path) as worker:
        hints, key = worker.hints, AgentKey("n", "a", "m")
        hints.set({key: 1})
        with pytest.raises(Cancelled):
            await answer(worker.start("a", prompt(40), 50), cancel_after=2)
        await worker.turn("a", prompt(40), generates=False)
        assert hints.of(key), "neither a turn that comes to nothing ends it, nor one that takes context in"
        assert not worker.store.ended_hints
        await worker.turn("a", prompt(60), request_id="r")
        assert (hints.of(key), worker.store.ended_hints) == (None, [key])
        hints.set({key: 5})
        await worker.turn("a", prompt(60), request_id="r")
        assert hints.of(key) is None, "the turn is replayed, and over all the same"
        assert worker.store.ledgers[key][0].number == 2


async def test_what_is_said_of_an_agent_while_it_speaks_is_of_its_next_turn(llama: Path, tmp_path: Path) -> None:
    async with working(llama, tmp_path) as worker:
        hints, key = worker.hints, AgentKey("n", "a", "m")
        hints.set({key: 0})
        for again in (False, True):
            turn = worker.start("a", prompt(40), request_id="r")
            hints.set({key: 3})
            await answer(turn)
            assert hints.order([key, AgentKey("n", "b", "m")])[-1] == key, f"replayed: {again}"
        assert worker.store.ended_hints == []


async def test_who_finds_no_room_is_told_so_and_comes_in_later(llama: Path, tmp_path: Path) -> None:
    async with working(llama, tmp_path, blocks=4, room_wait=0.05) as worker:
        running = worker.start("a", prompt(300), 600)
        events = aiter(running.events())
        await anext(events)
        with pytest.raises(ResourceExhausted):
            await worker.turn("b", prompt(500, 1))
        running.cancel()
        with pytest.raises(Cancelled):
            async for _ in events:
                pass
        await worker.idle()
        assert (await worker.turn("b", prompt(500, 1))).version == 1
        await worker.idle()


async def test_a_turn_that_fails_before_its_commit_leaves_the_hot_state(llama: Path, tmp_path: Path) -> None:
    async with working(llama, tmp_path) as worker:
        key, ids = AgentKey("n", "a", "m"), prompt(300)
        first = await worker.turn("a", ids)
        await worker.idle()
        state = worker.model.memory.hot.get(key)
        longer = [*ids, *first.token_ids, 5]
        with pytest.raises(Cancelled):
            await answer(worker.start("a", longer, 200), cancel_after=2)
        await worker.idle()
        assert worker.model.memory.hot.get(key) is state
        assert (await worker.turn("a", longer)).reused == 304
        await worker.idle()


@pytest.mark.slow("8/4-llama", "3-gemma3", "5/4-gemma3", "6/3-gemma3", "8/4-gemma3")
@pytest.mark.parametrize("write", [write_llama, write_gemma3], ids=["llama", "gemma3"])
@pytest.mark.parametrize("bits", ["3", "5/4", "6/3", "8/4"])
async def test_bits_of_k_and_v_in_all_tiers(tmp_path: Path, write: Callable[[Path], Path], bits: str) -> None:
    (tmp_path / "m").mkdir()
    directory, quantization = write(tmp_path / "m"), QuantizationSettings(KVBits.parse(bits))
    async with working(directory, tmp_path, quantization=quantization) as worker:
        ids, found = prompt(2 * BLOCK_TOKENS + 40), {}
        first = await worker.turn("a", ids)
        await worker.idle()
        longer = [*ids, *first.token_ids, 7, 8, 9]
        read_only = {"cache_policy": inference_pb2.CACHE_POLICY_READ_ONLY}
        found["HOT"] = await worker.turn("a", longer, **read_only)
        await worker.idle()
        worker.model.memory.hot.drop(AgentKey("n", "a", "m"))
        found["WARM"] = await worker.turn("a", longer, **read_only)
        cold = await worker.turn("a", longer, cache_policy=inference_pb2.CACHE_POLICY_RECOMPUTE)
        for tier, each in found.items():
            assert [types_pb2.Tier.Name(part.tier) for part in each.started.cache.cached] == [f"TIER_{tier}"]
            assert each.token_ids == found["HOT"].token_ids
            assert np.allclose(each.logprobs, found["HOT"].logprobs, atol=TOLERANCE)
        assert cold.reused == 0
        # What prefill and decoding round differently can turn a code over, and then tokens after it differ by more.
        assert abs(cold.logprobs[0] - found["HOT"].logprobs[0]) < 100 * TOLERANCE
        geometry, files = worker.model.geometry, worker.store.files.items()
        of_a_window = geometry.piece_bytes // geometry.piece_tokens if geometry.sliding else 0
        for name, file in files:
            token_bytes = of_a_window if name.kind == FileKind.WINDOW else geometry.bytes_per_token
            tensors = file.size_bytes - header_bytes(Path(file.path).read_bytes()[:8])
            assert tensors == file.token_count * token_bytes
        assert {name.kind for name, _ in files} == {FileKind.BLOCK, *([FileKind.WINDOW] if geometry.sliding else [])}


@pytest.mark.slow
async def test_many_agents_in_little_memory(directory: Path, tmp_path: Path) -> None:
    """Turns of all kinds at once, with cancellations and deletions: answers are right, and the pool adds up."""
    oracle, dice = Oracle(directory), random.Random(0)
    shared = prompt(BLOCK_TOKENS + 10, 99)
    kinds: list[dict[str, Any]] = [
        {},
        {},
        {},
        {"cache_policy": inference_pb2.CACHE_POLICY_READ_ONLY},
        {"cache_policy": inference_pb2.CACHE_POLICY_RECOMPUTE},
        {"generates": False},
    ]
    finished: list[tuple[list[int], Answer]] = []
    outcomes: list[str] = []
    evicted: list[int] = []

    async def agent(name: str, worker: Worker) -> None:
        for _ in range(4):
            _, ledger = worker.store.ledgers.get(AgentKey("n", name, "m"), (NO_VERSION, Ledger()))
            kept = dice.choice([len(ledger), len(ledger), dice.randrange(len(ledger) + 1)])
            before = ledger.token_ids[:kept].tolist()
            fresh = prompt(dice.randrange(1, 120), dice.randrange(1 << 30))
            ids = [*(before or shared[: dice.choice([0, len(shared), len(shared)])]), *fresh][:500]
            kind = dice.choice(kinds) if name else {}
            turn = worker.start(name, ids, dice.randrange(1, 12), **kind)
            try:
                found = await answer(turn, dice.choice([None, None, None, None, None, None, 1, 2]))
                finished.append((ids, found))
                outcomes.append(types_pb2.Tier.Name(found.started.cache.cached[0].tier) if found.reused else "NONE")
            except (Cancelled, FailedPrecondition, ResourceExhausted) as error:
                outcomes.append(type(error).__name__)
            if dice.random() < 0.1:
                key = AgentKey("n", name, "m")
                async with worker.locks.hold(key):
                    worker.model.memory.hot.drop(key)
                    worker.store.ledgers.pop(key, None)

    async with working(directory, tmp_path) as worker:
        worker.model.memory.admission.growth.evicted = evicted.append
        await asyncio.gather(*(agent(name, worker) for name in ["a", "b", "c", "d", "e", ""]))
        await worker.idle()
    assert {"TIER_HOT", "NONE", "Cancelled"} <= set(outcomes)
    assert evicted
    for ids, found in finished:
        if found.reused and found.token_ids:
            assert difference(oracle, ids, found) < TOLERANCE


async def test_turns_without_memory_for_arrays_end_and_are_kept(directory: Path, tmp_path: Path) -> None:
    """K and V of a layer are made of the blocks for each pass; the last token's KV is in a pass of its own."""
    oracle = Oracle(directory)
    async with working(directory, tmp_path, blocks=8, pieces=36) as worker:
        worker.model.memory.admission._limit_bytes = 0
        prompts = [prompt(400), prompt(300, 1)]
        async with asyncio.timeout(30):
            found = await asyncio.gather(*(worker.turn(name, ids, 8) for name, ids in zip("ab", prompts, strict=True)))
            await worker.idle()
            for name, ids, said in zip("ab", prompts, found, strict=True):
                again = await worker.turn(name, longer := [*ids, *said.token_ids, 7])
                assert again.reused == len(ids) + 8
                assert difference(oracle, longer, again) < TOLERANCE
            await worker.idle()
