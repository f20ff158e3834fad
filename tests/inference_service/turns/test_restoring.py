"""Restores into the caches' own buffers, and into other memory while the engine is at work: both as if computed."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest

from agentmem.errors import Cancelled, ResourceExhausted
from agentmem.kv.blockfile import BLOCK_TOKENS, FileName
from agentmem.v1 import inference_pb2, types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.caches import QuantizedKVCache
from inference_service.engine.geometry import Caches
from inference_service.engine.headroom import Headroom
from inference_service.engine.preallocating import PreallocatedBuffers
from inference_service.turns import restoring
from inference_service.turns.restored import Restored
from tests.inference_service.engine.arena_bits import bits
from tests.inference_service.turns.world import Worker, answer, prompt, working
from tests.tiny_models import write_gemma3, write_llama

TOKENS = 700
KEY = AgentKey("n", "a", "m")


@pytest.fixture(scope="module", params=[write_llama, write_gemma3], ids=["full attention", "with windows"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    written: Path = request.param(tmp_path_factory.mktemp("model"))
    return written


class Seen(NamedTuple):
    """What a turn started from: whether files were read into buffers, and the bits of the full-attention layers."""

    into: bool
    tokens: int
    bits: list[np.ndarray]


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    seen: list[Seen] = []
    caches = Restored.caches

    def noted(self: Restored) -> Caches:
        into = self.buffers is not None
        found = caches(self)
        full = [cache for cache in found if isinstance(cache, QuantizedKVCache) and not cache.empty()]
        seen.append(Seen(into, self.tokens, [bits(array).copy() for cache in full for array in cache.buffers.arrays]))
        return found

    monkeypatch.setattr(Restored, "caches", noted)
    return seen


async def first_turn(worker: Worker) -> list[int]:
    ids = prompt(TOKENS)
    said = await worker.turn("a", ids)
    await worker.at_rest()
    worker.model.memory.hot.drop(KEY)
    return [*ids, *said.token_ids, 5, 6]


async def busy(worker: Worker, work: Callable[[], Any]) -> Any:
    """Do work, which is read from files, while a function runs on the engine."""
    gate = threading.Event()
    worker.engine.submit(lambda: gate.wait(30))
    running = asyncio.ensure_future(work())
    await asyncio.sleep(0.3)
    gate.set()
    return await running


@pytest.mark.slow("with windows")
async def test_an_idle_engine_allocates_and_a_busy_one_is_not_waited_for(
    directory: Path, tmp_path: Path, restored: list[Seen]
) -> None:
    async with working(directory, tmp_path) as worker:
        await first_turn(worker)
        restored.clear()
        alone = await worker.prefetch("a")
        await worker.idle()
        worker.model.memory.hot.drop(KEY)
        assert await busy(worker, lambda: worker.prefetch("a")) == alone
        assert [each.into for each in restored] == [True, False]
        assert alone.tokens == restored[0].tokens > 2 * BLOCK_TOKENS
        assert all(map(np.array_equal, *(each.bits for each in restored))), "zeros behind the tokens, too"


async def test_a_gpu_with_memory_of_its_own_gets_arrays_that_were_put_together(
    directory: Path, tmp_path: Path, restored: list[Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "has_own_memory", lambda: True)
    async with working(directory, tmp_path) as worker:
        await first_turn(worker)
        restored.clear()
        await worker.prefetch("a")
        assert [each.into for each in restored] == [False]


@pytest.mark.slow("1")
@pytest.mark.parametrize("bad", [0, 1, 2])
async def test_behind_a_damaged_file_nothing_of_what_was_read_is_left(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    restored: list[Seen],
    bad: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The prefix that is good is used; the rest is computed, and equals what it was."""
    async with working(write_llama(tmp_path_factory.mktemp("llama")), tmp_path) as worker:
        ids = await first_turn(worker)
        refused: list[FileName] = []

        async def quarantine(_: str, name: FileName, *__: Any) -> None:
            refused.append(name)

        monkeypatch.setattr(worker.store, "quarantine", quarantine)
        file = max(
            (file for file in worker.store.files.values() if file.first_token == bad * BLOCK_TOKENS),
            key=lambda file: file.token_count,
        )
        path = Path(file.path)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        restored.clear()
        said = await worker.turn("a", ids)
        assert said.reused == bad * BLOCK_TOKENS
        assert [name.chain_hash for name in refused] == [file.chain_hash]
        [seen] = restored
        assert seen.into is True or not bad
        assert (seen.tokens, bool(seen.bits)) == (said.reused, bad > 0)
        assert not any(array[:, :, seen.tokens :].any() for array in seen.bits)
        await worker.idle()
        again = await worker.turn("b", ids, cache_policy=inference_pb2.CACHE_POLICY_RECOMPUTE)
        assert np.allclose(again.logprobs, said.logprobs, atol=1e-3)
        await worker.idle()


@pytest.mark.slow
async def test_memory_for_buffers_is_looked_for_before_it_is_taken_and_only_once(
    directory: Path, tmp_path: Path, restored: list[Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(directory, tmp_path) as worker:
        ids = await first_turn(worker)
        restored.clear()
        free = [0]
        worker.model.engine.headroom = Headroom(free=lambda: free.pop() if len(free) > 1 else free[0])
        fetcher = worker.runner.restorer._fetcher
        read = fetcher.read
        monkeypatch.setattr(fetcher, "read", never)
        with pytest.raises(ResourceExhausted, match=r"KV of .* tokens needed about"):
            await worker.turn("a", ids)
        await worker.at_rest()
        assert (await worker.prefetch("a")).tokens == 0
        assert not restored
        monkeypatch.setattr(fetcher, "read", read)
        free.append(1 << 30)  # For one look: by the next the files have filled it.
        await worker.at_rest()
        said = await worker.turn("a", ids)
        assert free == [0] and [each.into for each in restored] == [True]
        assert said.reused == restored[0].tokens > 2 * BLOCK_TOKENS
        await worker.idle()


async def test_what_a_turn_has_read_goes_with_its_reservation(directory: Path, tmp_path: Path) -> None:
    """It was cancelled before the engine made caches of it; cycles are not what frees it."""
    async with working(directory, tmp_path) as worker:
        ids = await first_turn(worker)
        find, found, gate = worker.runner.restorer.find, list[Restored](), threading.Event()

        async def then_busy(*arguments: Any, **options: Any) -> Restored:
            found.append(await find(*arguments, **options))
            worker.engine.submit(lambda: gate.wait(30))
            turn.cancel()
            asyncio.get_running_loop().call_later(0.2, gate.set)
            assert found[0].buffers is not None
            return found[0]

        worker.runner.restorer.find = then_busy  # type: ignore[method-assign]
        await worker.engine.call(mx.clear_cache)
        before = mx.get_active_memory()
        await worker.at_rest()
        turn = worker.start("a", ids)
        with pytest.raises(Cancelled):
            await answer(turn)
        await worker.idle()
        assert (found[0].buffers, found[0].tensors) == (None, {})
        await worker.engine.call(mx.clear_cache)
        assert mx.get_active_memory() - before < TOKENS * worker.model.geometry.bytes_per_token


async def test_buffers_that_come_after_a_cancellation_are_nobodys(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine allocates them when the reservation has been given back; no caller is left that would free them."""
    async with working(directory, tmp_path) as worker:
        await first_turn(worker)
        asked, gate, found = asyncio.Event(), threading.Event(), list[Restored]()
        loop, preallocated = asyncio.get_running_loop(), Restored.preallocated

        def late(self: Restored) -> PreallocatedBuffers:
            found.append(self)
            loop.call_soon_threadsafe(asked.set)
            gate.wait(30)
            return preallocated(self)

        monkeypatch.setattr(Restored, "preallocated", late)
        await worker.engine.call(mx.clear_cache)
        before = mx.get_active_memory()
        await worker.at_rest()  # A busy engine gets no buffers.
        running = asyncio.ensure_future(worker.prefetch("a"))
        await asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        gate.set()
        await worker.engine.call(mx.clear_cache)
        assert found[0].buffers is None
        assert mx.get_active_memory() - before < TOKENS * worker.model.geometry.bytes_per_token


async def test_buffers_of_files_that_are_all_bad_go_before_others_come(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(write_llama(tmp_path_factory.mktemp("llama")), tmp_path) as worker:
        ids = await first_turn(worker)
        asked: list[bool] = []
        fetcher, preallocated = worker.runner.restorer._fetcher, Restored.preallocated
        read = fetcher.read

        def noted(self: Restored) -> PreallocatedBuffers:
            asked.append(self.buffers is None)
            return preallocated(self)

        async def first_fails(geometry: Any, namespace: str, model_id: str, wanted: Any, into: Any = None) -> Any:
            if len(asked) > 1:
                return await read(geometry, namespace, model_id, wanted, into)
            while not worker.engine.idle:
                await asyncio.sleep(0.001)
            last = max(wanted, key=lambda each: each[0].first_token)
            return {}, {FileName.of(last[0]): types_pb2.MISS_REASON_ABSENT}

        monkeypatch.setattr(Restored, "preallocated", noted)
        monkeypatch.setattr(fetcher, "read", first_fails)
        while not worker.engine.idle:
            await asyncio.sleep(0.001)
        said = await worker.turn("a", ids)
        assert asked == [True, True] and said.reused == 2 * BLOCK_TOKENS
        await worker.idle()


async def never(*_: Any) -> Any:
    pytest.fail("files are read for which there is no memory")
