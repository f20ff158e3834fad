"""A prompt's full blocks are in the pool as soon as they are computed: for turns that begin alike, and for a retry of
one that was cancelled.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentmem.errors import Aborted, Cancelled
from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.v1 import inference_pb2
from agentmem.validation import AgentKey
from inference_service.engine import prompts
from inference_service.engine.paged.sequence import WindowTable
from inference_service.engine.prompt_blocks import PromptBlocks
from inference_service.pool.kv import KVPool
from inference_service.turns.stream import TurnStream
from tests.inference_service.directories import written_by
from tests.inference_service.turns.world import TOLERANCE, Worker, answer, difference, prompt, working
from tests.tiny_hybrids import write_qwen3_next
from tests.tiny_models import write_gemma3, write_llama

directory = written_by([write_llama, write_gemma3, write_qwen3_next], ["full", "windows", "states"])
running = partial(working, blocks=24, pieces=40)


async def cancelled(worker: Worker, agent: str, ids: list[int], chunks: int) -> None:
    """A turn whose caller leaves when so many chunks of its prompt are computed; the pass with its end is one."""
    turn, left = worker.start(agent, ids, 50), [chunks]

    def stepped(_: str) -> None:
        left[0] -= 1
        if not left[0]:
            turn.cancelled.set()

    worker.model.engine.stepped = stepped
    with pytest.raises(Cancelled):
        await answer(turn)
    worker.model.engine.stepped = lambda _kind: None
    await worker.idle()


@pytest.mark.slow("states")
async def test_retry_of_a_turn_that_was_cancelled_while_it_answered_reuses_its_full_blocks(
    directory: Path, tmp_path: Path
) -> None:
    async with running(directory, tmp_path) as worker:
        ids = prompt(1100)
        with pytest.raises(Cancelled):
            await answer(worker.start("a", ids, 50), cancel_after=3)
        await worker.idle()
        assert not worker.store.ledgers, "nothing of it is in the ledger"
        again = await worker.turn("a", ids)
        assert again.reused == 1024
        assert difference(directory, ids, again) < TOLERANCE
        await worker.idle()


@pytest.mark.slow("states")
async def test_blocks_that_wait_for_the_commit_are_kept_when_it_does_not_come(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU more of a prompt's end is in a pass with who decodes."""
    monkeypatch.setattr(prompts, "on_cpu", lambda: False)
    async with running(directory, tmp_path) as worker:
        ids = prompt(300)
        with pytest.raises(Cancelled):
            await answer(worker.start("a", ids, 50), cancel_after=3)
        await worker.idle()
        again = await worker.turn("a", ids)
        assert again.reused == 256
        assert difference(directory, ids, again) < TOLERANCE
        await worker.idle()


@pytest.mark.slow("full-2", "windows-2", "states-1", "states-2")
@pytest.mark.parametrize("chunks", [1, 2])
async def test_retry_of_a_turn_that_was_cancelled_in_its_prompt_reuses_what_was_computed(
    directory: Path, tmp_path: Path, chunks: int
) -> None:
    async with running(directory, tmp_path) as worker:
        ids = prompt(1100)
        await cancelled(worker, "a", ids, chunks)
        again = await worker.turn("a", ids)
        assert 256 * chunks <= again.reused < 1099
        assert again.reused % 256 == 0
        assert difference(directory, ids, again) < TOLERANCE
        await worker.idle()


@pytest.mark.slow("windows", "states")
async def test_next_turn_that_was_cancelled_leaves_the_agent_as_it_was(directory: Path, tmp_path: Path) -> None:
    async with running(directory, tmp_path) as worker:
        ids = prompt(300)
        first = await worker.turn("a", ids)
        history = [*ids, *first.token_ids]
        await cancelled(worker, "a", [*history, *prompt(900, 1)], 1)
        other = [*history, *prompt(20, 2)]
        second = await worker.turn("a", other)
        assert second.version == 2
        assert second.reused == len(history)
        assert difference(directory, other, second) < TOLERANCE
        await worker.idle()


async def test_turn_whose_commit_fails_leaves_its_blocks(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(llama, tmp_path) as worker:

        async def commit(*_: Any) -> None:
            raise Aborted("another writer was first")

        with monkeypatch.context() as patched:
            patched.setattr(worker.store, "commit", commit)
            with pytest.raises(Aborted):
                await worker.turn("a", prompt(700))
        assert (await worker.turn("a", prompt(700))).reused == 512
        await worker.idle()


async def test_leftovers_are_evicted_before_any_agent(llama: Path, tmp_path: Path) -> None:
    async with working(llama, tmp_path, blocks=8) as worker:
        idle = await worker.turn("idle", prompt(400, 1))
        await cancelled(worker, "left", prompt(1000, 2), 2)
        hot = worker.model.memory.hot
        assert len(hot.tables()) == 2
        await worker.turn("new", prompt(1000, 3))
        await worker.idle()
        assert AgentKey("n", "idle", "m") in hot
        assert len(hot.tables()) == 2
        back = [*prompt(400, 1), *idle.token_ids, 7]
        assert (await worker.turn("idle", back)).reused == 404


@pytest.mark.slow("windows", "states")
async def test_agents_that_begin_together_compute_their_common_prompt_once(directory: Path, tmp_path: Path) -> None:
    async with running(directory, tmp_path) as worker:
        common = prompt(800)
        prompts = [[*common, *prompt(60, i)] for i in range(1, 5)]
        found = await asyncio.gather(*(worker.turn(f"a{i}", ids) for i, ids in enumerate(prompts)))
        assert sorted(each.reused for each in found) == [0, 768, 768, 768]
        for ids, each in zip(prompts, found, strict=True):
            assert difference(directory, ids, each) < TOLERANCE
        await worker.idle()


@pytest.mark.parametrize("longest", ["first", "last"])
async def test_turn_finds_blocks_of_one_that_is_still_computed(llama: Path, tmp_path: Path, longest: str) -> None:
    """A short prompt does not wait for all of a long one that begins alike, and neither computes a block twice."""
    async with running(llama, tmp_path) as worker:
        common = prompt(600)
        prompts = [[*common, *prompt(1000, 1)], [*common, *prompt(30, 2)]]
        if longest == "last":
            prompts.reverse()
        found = await asyncio.gather(*(worker.turn(f"a{i}", ids) for i, ids in enumerate(prompts)))
        assert sorted(each.reused for each in found) == [0, 512]
        for ids, each in zip(prompts, found, strict=True):
            assert difference(llama, ids, each) < TOLERANCE
        await worker.idle()


async def test_another_goes_on_when_the_one_that_computed_first_is_cancelled(llama: Path, tmp_path: Path) -> None:
    async with running(llama, tmp_path) as worker:
        ids = prompt(1500)
        second = asyncio.create_task(worker.turn("b", [*ids, 7]))
        await cancelled(worker, "a", ids, 2)
        found = await second
        assert found.reused % 256 == 0
        assert difference(llama, [*ids, 7], found) < TOLERANCE
        await worker.idle()


async def test_no_turn_waits_for_checkpoints_that_another_captures_only_to_share(tmp_path: Path) -> None:
    """A model with windows, whose pool has room for all that one turn captures, and for one checkpoint of another."""
    directory = write_gemma3(tmp_path / "gemma")
    async with working(directory, tmp_path, blocks=24, pieces=(1 + 3 + 1 + 1) * 6) as worker:
        long = worker.start("long", prompt(300, 1), 200)
        ended: list[str] = []

        async def until_it_ends(name: str, turn: TurnStream) -> None:
            await answer(turn)
            ended.append(name)

        await asyncio.gather(
            until_it_ends("long", long), until_it_ends("short", worker.start("short", prompt(300, 2), 2))
        )
        assert ended == ["short", "long"]
        await worker.idle()


async def test_blocks_that_another_has_made_take_none_of_the_turns_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt is computed although its blocks are there, since no state is: reserved is what is missing."""
    directory = write_qwen3_next(tmp_path / "states")
    async with working(directory, tmp_path, blocks=24, pieces=0) as worker:
        ids = prompt(422)
        await worker.turn("first", ids, 30)
        await worker.idle()
        worker.store.files.clear()
        with monkeypatch.context() as patched:
            patched.setattr(KVPool, "find_checkpoint", lambda *_: None)
            second = await worker.turn("second", [*ids[:300], *prompt(122, 1)], 30)
            await worker.idle()
        assert (second.version, second.reused) == (1, 0)
        assert AgentKey("n", "second", "m") in worker.model.memory.hot


async def test_namespaces_share_nothing_and_neither_do_turns_that_recompute(llama: Path, tmp_path: Path) -> None:
    async with running(llama, tmp_path) as worker:
        await cancelled(worker, "a", prompt(1000), 1)
        options = {"cache_policy": inference_pb2.CACHE_POLICY_RECOMPUTE}
        assert (await worker.turn("b", prompt(1000), **options)).reused == 0
        await worker.idle()


async def test_turn_that_keeps_nothing_leaves_nothing(llama: Path, tmp_path: Path) -> None:
    async with running(llama, tmp_path) as worker:
        options = {"cache_policy": inference_pb2.CACHE_POLICY_READ_ONLY}
        with pytest.raises(Cancelled):
            await answer(worker.start("a", prompt(700), 50, **options), cancel_after=3)
        await worker.idle()
        assert not worker.model.memory.hot.tables()
        assert worker.model.memory.pool.full.used == 0


def _early(keep: Callable[..., Sequence[bytes]], self: PromptBlocks, tokens: int, *rest: Any) -> Sequence[bytes]:
    """Fault: a block is named before it is computed."""
    return keep(self, tokens + BLOCK_TOKENS, *rest)


def _shorter(share: Callable[..., list[int]], self: WindowTable, length: int) -> list[int]:
    """Fault: a window that begins a piece later than it says."""
    first, *others = share(self, length)
    return [*others, first]


@pytest.mark.parametrize(
    ("directory", "of", "name", "faulty"),
    [(write_llama, PromptBlocks, "keep", _early), (write_gemma3, WindowTable, "share", _shorter)],
    ids=["block", "window"],
    indirect=["directory"],
)
async def test_faults_in_what_is_kept_show_in_a_retry(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: type, name: str, faulty: Callable[..., Any]
) -> None:
    right = getattr(of, name)
    monkeypatch.setattr(of, name, lambda *arguments: faulty(right, *arguments))
    async with running(directory, tmp_path) as worker:
        ids = prompt(900)
        await cancelled(worker, "a", ids, 1)
        again = await worker.turn("a", ids)
        assert again.reused
        assert difference(directory, ids, again) > 10 * TOLERANCE
