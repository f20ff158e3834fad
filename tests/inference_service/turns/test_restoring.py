"""Restores: files that are read into a sequence's blocks, or into other memory and from there, both as if computed."""

import asyncio
import threading
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest

from agentmem.errors import Cancelled, ResourceExhausted
from agentmem.kv.blockfile import BLOCK_TOKENS, FileName
from agentmem.v1 import inference_pb2
from agentmem.validation import AgentKey
from inference_service.engine.paged import arena
from inference_service.engine.paged.arena import HostArena
from inference_service.engine.paged.sequence import Sequence
from inference_service.engine.paged.store import KVStore
from inference_service.storage import blocks, transport
from inference_service.turns.restored import Restored
from tests.inference_service.directories import written_by
from tests.inference_service.turns.world import Worker, answer, prompt, working
from tests.tiny_models import write_gemma3, write_llama

TOKENS = 700
KEY = AgentKey("n", "a", "m")


directory = written_by([write_llama, write_gemma3], ["full attention", "with windows"])


class Seen(NamedTuple):
    """A sequence's beginning: whether files were read into its blocks, its tokens, and its blocks' content."""

    into: bool
    tokens: int
    blocks: list[dict[str, bytes]]


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    seen: list[Seen] = []
    sequence = Restored.sequence

    def noted(self: Restored) -> Sequence:
        files = [self.tensors[FileName.of(each.header)] for each in self.choice.warm]
        found = sequence(self)
        arenas, counts = self.model.arenas, [each.usable_tokens for each in (*self.choice.hot, *self.choice.warm)]
        blocks = [arenas.read_block(block, count)() for block, count in zip(found.full.blocks, counts, strict=False)]
        seen.append(Seen(bool(files) and not any(files), self.tokens, blocks))
        return found

    monkeypatch.setattr(Restored, "sequence", noted)
    return seen


async def first_turn(worker: Worker) -> list[int]:
    ids = prompt(TOKENS)
    said = await worker.turn("a", ids)
    await worker.at_rest()
    worker.model.memory.hot.drop(KEY)
    return [*ids, *said.token_ids, 5, 6]


async def test_blocks_in_a_gpus_own_memory_get_what_was_read_elsewhere(
    directory: Path, tmp_path: Path, restored: list[Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(directory, tmp_path) as worker:
        await first_turn(worker)
        restored.clear()
        await worker.prefetch("a")
        await worker.idle()
        worker.model.memory.hot.drop(KEY)
        await worker.engine.call(lambda: poison(worker))
        monkeypatch.setattr(KVStore, "host_buffers", lambda *_: None)
        await worker.prefetch("a")
        assert [each.into for each in restored] == [True, False]
        assert restored[0].blocks == restored[1].blocks


def poison(worker: Worker) -> None:
    """Have something in all blocks that is nobody's KV."""
    arena = worker.model.arenas.full
    assert isinstance(arena, HostArena)
    for block in range(worker.model.memory.pool.full.capacity):
        arena.words(block)[:] = 0x7FC07FC0


@pytest.mark.slow("1")
@pytest.mark.parametrize("bad", [0, 1, 2])
async def test_behind_a_damaged_file_nothing_of_what_was_read_is_left(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    restored: list[Seen],
    bad: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The prefix that is good is used; the rest is computed, to blocks that files were read into."""
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
        await worker.engine.call(lambda: poison(worker))
        said = await worker.turn("a", ids)
        assert said.reused == bad * BLOCK_TOKENS
        assert [name.chain_hash for name in refused] == [file.chain_hash]
        [seen] = restored
        assert seen.into is (bad > 0)
        assert (seen.tokens, len(seen.blocks)) == (said.reused, bad)
        await worker.idle()
        again = await worker.turn("b", ids, cache_policy=inference_pb2.CACHE_POLICY_RECOMPUTE)
        assert np.allclose(again.logprobs, said.logprobs, atol=1e-3)
        await worker.idle()


@pytest.mark.slow
async def test_memory_of_blocks_is_taken_before_files_are_read_into_them(
    directory: Path, tmp_path: Path, restored: list[Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their segment was given back. Memory is looked for once: by the next time the segment has filled it."""
    async with working(directory, tmp_path) as worker:
        ids = await first_turn(worker)
        restored.clear()
        await worker.engine.call(lambda: worker.model.arenas.full.release([0]))
        free = [0]
        monkeypatch.setattr(arena, "free_bytes", lambda: free.pop() if len(free) > 1 else free[0])
        restorer = worker.runner.restorer
        read = restorer.read
        monkeypatch.setattr(restorer, "read", never)
        with pytest.raises(ResourceExhausted, match=r"the device's memory is taken: a segment of the pool takes"):
            await worker.turn("a", ids)
        await worker.at_rest()
        assert (await worker.prefetch("a")).tokens == 0
        assert not restored
        monkeypatch.setattr(restorer, "read", read)
        free.append(1 << 30)
        said = await worker.turn("a", ids)
        assert free == [0] and [each.into for each in restored] == [True]
        assert said.reused == restored[0].tokens > 2 * BLOCK_TOKENS
        await worker.idle()


async def test_what_a_turn_has_read_goes_with_its_reservation(directory: Path, tmp_path: Path) -> None:
    """It was cancelled before the engine began a sequence with it; cycles are not what frees it."""
    async with working(directory, tmp_path) as worker:
        ids = await first_turn(worker)
        find, found, gate = worker.runner.restorer.find, list[Restored](), threading.Event()

        async def then_busy(*arguments: Any, **options: Any) -> Restored:
            found.append(await find(*arguments, **options))
            worker.engine.submit(lambda: gate.wait(30))
            turn.cancel()
            asyncio.get_running_loop().call_later(0.2, gate.set)
            assert found[0].tensors
            return found[0]

        worker.runner.restorer.find = then_busy  # type: ignore[method-assign]
        await worker.engine.call(mx.clear_cache)
        before = mx.get_active_memory()
        await worker.at_rest()
        turn = worker.start("a", ids)
        with pytest.raises(Cancelled):
            await answer(turn)
        await worker.idle()
        assert found[0].tensors == {}
        await worker.engine.call(mx.clear_cache)
        assert mx.get_active_memory() - before < TOKENS * worker.model.geometry.bytes_per_token


async def test_blocks_that_files_are_read_into_are_the_turns_until_nothing_is_read(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that reads a file does not stop where its turn is cancelled: another's KV could be in the block."""
    async with working(directory, tmp_path) as worker:
        ids = await first_turn(worker)
        asked, gate = threading.Event(), threading.Event()
        read_into = blocks.read_into

        def late(*arguments: Any) -> None:
            asked.set()
            gate.wait(30)
            read_into(*arguments)

        monkeypatch.setattr(transport, "read_into", late)
        turn = worker.start("a", ids)
        running = asyncio.ensure_future(answer(turn))
        await asyncio.to_thread(asked.wait, 30)
        turn.cancel()
        await asyncio.sleep(0.05)
        assert not worker.model.memory.admission.idle
        gate.set()
        with pytest.raises(Cancelled):
            await running
        await worker.idle()


async def test_blocks_of_a_prefetch_are_its_own_until_the_engine_lets_go_of_them(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine begins the sequence although nobody waits for it any more, and copies to its blocks."""
    async with working(directory, tmp_path) as worker:
        await first_turn(worker)
        asked, gate = threading.Event(), threading.Event()
        sequence = Restored.sequence

        def late(self: Restored) -> Sequence:
            asked.set()
            gate.wait(30)
            return sequence(self)

        monkeypatch.setattr(Restored, "sequence", late)
        running = asyncio.ensure_future(worker.prefetch("a"))
        await asyncio.to_thread(asked.wait, 30)
        running.cancel()
        await asyncio.sleep(0.05)
        assert not worker.model.memory.admission.idle
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        await worker.idle()


async def never(*_: Any) -> Any:
    pytest.fail("files are read for which there is no memory")
