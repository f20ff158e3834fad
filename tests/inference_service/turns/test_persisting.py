"""Publishing in the background, from a real arena to real files: what is written, what a failure leaves behind."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import pytest
from prometheus_client import CollectorRegistry

from agentmem import tracing
from agentmem.errors import Unavailable
from agentmem.kv.blockfile import FileKind, FileName, digest
from agentmem.kv.ledger import Version
from agentmem.v1 import cache_store_pb2
from agentmem.validation import AgentKey
from inference_service.engine.arenas import Arenas
from inference_service.engine.checkpoints import Checkpoint, captured, space_of, window_tensors
from inference_service.engine.geometry import Caches, Geometry, LayerGroup
from inference_service.engine.quantization import FOUR_BITS
from inference_service.engine.thread import EngineThread
from inference_service.memory.checkpoints import checkpoint_headers
from inference_service.memory.restore import headers
from inference_service.metrics import WorkerMetrics
from inference_service.pool.kv import KVPool, Space, Table
from inference_service.storage import transport
from inference_service.storage.blocks import read_block
from inference_service.storage.transport import TransportSelector
from inference_service.turns import persisting
from inference_service.turns.persisting import Persister, State

KEY = AgentKey("n", "a", "m")
GEOMETRY = Geometry(2, mx.float32, FOUR_BITS, LayerGroup((1,), 2, 64, 64), LayerGroup((0,), 2, 64, 64, window=64))
TOKENS = 600


class Store:
    """Stages in a directory, and remembers what was published. `gate` holds staging up; `existing` needs no writing."""

    def __init__(self, directory: Path, fail: Exception | None = None) -> None:
        self.directory = directory
        self.fail = fail
        self.published: list[tuple[Version, list[cache_store_pb2.StoredFile], list[FileName]]] = []
        self.traces: list[tracing.Trace | None] = []
        self.existing: set[FileName] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    async def stage(self, namespace: str, names: Iterable[FileName]) -> dict[FileName, str]:
        wanted = list(names)
        await self.gate.wait()
        return {
            name: str(self.directory / f"{name.kind}{name.chain_hash.hex()[:8]}.safetensors")
            for name in wanted
            if name not in self.existing
        }

    async def publish(self, key: Any, version: Any, files: list[Any], references: Any, fingerprint: str) -> None:
        if self.fail:
            raise self.fail
        self.published.append((version, files, references))
        self.traces.append(tracing.current())
        self.existing |= {FileName(file.kind, file.chain_hash) for file in files}


@dataclass
class World:
    store: Store
    registry: CollectorRegistry
    engine: EngineThread
    model: Any
    persister: Persister

    @property
    def pool(self) -> KVPool:
        return self.model.memory.pool

    async def state(self, version: int, tokens: int = TOKENS, seed: int = 0) -> tuple[State, Caches]:
        """A state in the arena, as a turn leaves it, with a window captured at 500."""
        ids = [(seed * 7 + i) % 50 for i in range(tokens)]

        def compute() -> tuple[Caches, Checkpoint | None]:
            caches, window = GEOMETRY.new_caches(), None
            for start, stop in ((0, 500), (500, tokens)):
                for cache in caches:
                    cache.update_and_fetch(*(mx.random.normal((1, 2, stop - start, 64)) for _ in range(2)))
                window = window or captured(caches)
            return caches, window

        caches, window = await self.engine.call(compute)
        kept, count = space_of(caches, GEOMETRY)
        blocks, pieces = self.pool.full.allocate(-(-tokens // 256)), self.pool.pieces.allocate(count)
        await self.engine.call(lambda: self.model.arenas.write(caches, 0, blocks, pieces))
        table = Table(tokens, tuple(blocks), kept, tuple(pieces))
        assert window is not None
        windows = checkpoint_headers("f", "n", ids, {500: window.tokens, tokens: kept})
        held = {windows[0].chain_hash: window}
        named = list(headers("f", "n", ids))
        return State(KEY, Version("u", version), self.model, table, named, windows, held), caches

    def release(self, state: State) -> None:
        """As if the agent was evicted."""
        self.pool.release(state.table)


@asynccontextmanager
async def world(directory: Path, fail: Exception | None = None) -> AsyncIterator[World]:
    engine, registry, store = EngineThread(), CollectorRegistry(), Store(directory, fail)
    engine.start()
    arenas = await engine.call(lambda: Arenas(GEOMETRY, 12, 24))
    pool = KVPool(Space(12, 24), GEOMETRY.checkpoint_pieces)
    model = SimpleNamespace(
        model_id="m", geometry=GEOMETRY, fingerprint="f", arenas=arenas, memory=SimpleNamespace(pool=pool)
    )
    metrics = WorkerMetrics(registry)
    persister = Persister(engine, cast(Any, store), TransportSelector(cast(Any, store), "path", metrics), metrics)
    try:
        yield World(store, registry, engine, model, persister)
        await persister.flush(10)
        assert not persister.tables(cast(Any, model))
        pool.check_integrity([])
    finally:
        await engine.stop(5)


async def test_files_are_what_the_arena_held_although_it_is_overwritten_meanwhile(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        state, caches = await w.state(1)
        w.store.gate.clear()
        w.persister.publish(state)
        w.release(state)
        others = [await w.state(2, seed=seed) for seed in range(3)]
        assert not any(set(state.table.blocks) & set(other.table.blocks) for other, _ in others), "held until written"
        w.store.gate.set()
        await w.persister.flush(10)
        _, files, references = w.store.published[0]
        assert [FileName(f.kind, f.chain_hash) for f in files] == references
        assert len(files) == 3 + 2
        by_name = {FileName(f.kind, f.chain_hash): f for f in files}
        wanted = window_tensors([caches[1].buffers])
        for header in state.blocks:
            file = by_name[FileName.of(header)]
            read = read_block(file.path, header, file.digest, GEOMETRY)
            for name, tensor in read.items():
                whole = wanted[name]
                rows = len(whole) // (2 * TOKENS)
                start, stop = header.first_token * rows, (header.first_token + header.token_count) * rows
                heads = [whole[h * TOKENS * rows :][start:stop] for h in range(2)]
                assert tensor.tobytes() == b"".join(heads)
        windows = (
            state.captured[state.windows[0].chain_hash].window,
            [caches[0].buffers.last(state.table.window_tokens)],
        )
        for header, buffers in zip(state.windows, windows, strict=True):
            file = by_name[FileName.of(header)]
            read = read_block(file.path, header, file.digest, GEOMETRY)
            expected = window_tensors(buffers)
            assert {name: tensor.tobytes() for name, tensor in read.items()} == expected
        size = sum(path.stat().st_size for path in tmp_path.iterdir())
        assert w.registry.get_sample_value("agentmem_cache_store_bytes_total", {"model_id": "m"}) == size
        assert digest(Path(files[0].path).read_bytes()) == files[0].digest
        for other, _ in others:
            w.release(other)


async def test_what_exists_is_not_written_and_what_is_lost_is_not_referred_to(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        state, _ = await w.state(1)
        w.release(state)
        first, lost = FileName.of(state.blocks[0]), FileName.of(state.windows[0])

        state = State(KEY, state.version, w.model, Table(0, ()), state.blocks[:1], state.windows[:1])
        w.store.existing.add(first)
        w.persister.publish(state)
        await w.persister.flush(10)
        assert w.store.published == [(state.version, [], [first])]
        assert lost not in w.store.published[0][2]


async def test_a_newer_state_replaces_one_that_waits_and_takes_over_its_windows(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.store.gate.clear()
        states = [(await w.state(version))[0] for version in (1, 2, 3)]
        w.persister.publish(states[0])
        await asyncio.sleep(0)
        w.persister.publish(states[1])
        w.persister.publish(replace(states[2], captured={}))
        for state in states:
            w.release(state)
        w.store.gate.set()
        await w.persister.flush(10)
        assert [version.number for version, _, _ in w.store.published] == [1, 3]
        assert FileName.of(states[1].windows[0]) in w.store.published[1][2]


async def test_of_more_checkpoints_than_may_wait_the_last_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path) as w:
        state, _ = await w.state(1)
        (name, last), first = *state.captured.items(), state.blocks[0].chain_hash
        captured = {first: last._replace(position=256), name: last}
        state = replace(state, captured=captured, windows=[replace(state.blocks[0], window=True), *state.windows])
        assert state.within(2 * last.nbytes) is state
        monkeypatch.setattr(persisting, "MAX_CAPTURED_BYTES", 2 * last.nbytes - 1)
        w.persister.publish(state)
        w.release(state)
        await w.persister.flush(10)
        names = {reference.chain_hash for reference in w.store.published[0][2] if reference.kind is FileKind.WINDOW}
        assert names == {header.chain_hash for header in state.windows} - {first}
        assert "1 of a turn are dropped" in caplog.text


async def test_each_state_is_written_for_the_turn_that_made_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.store.gate.clear()
        for version in (1, 2, 3):
            with tracing.serving(tracing.Trace(f"turn {version}")):
                state, _ = await w.state(version, seed=version)
                w.persister.publish(state)
            w.release(state)
            await asyncio.sleep(0)
        w.store.gate.set()
        await w.persister.flush(10)
        assert w.store.traces == [tracing.Trace(f"turn {version}") for version in (1, 2, 3)]


async def test_a_branch_that_was_left_is_written_too_and_can_be_waited_for(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.store.gate.clear()
        states = [(await w.state(version, seed=seed))[0] for version, seed in ((1, 0), (2, 1), (3, 2))]
        for state in states:
            w.persister.publish(state)
            w.release(state)
            await asyncio.sleep(0)
        await w.persister.wait_written(KEY, 0.01)
        assert not w.store.published, "waits no longer than that"
        settling = asyncio.create_task(w.persister.wait_written(KEY))
        await w.persister.wait_written(KEY._replace(agent_id="other"))
        w.store.gate.set()
        await settling
        assert [version.number for version, _, _ in w.store.published] == [1, 2, 3]


async def test_a_turn_waits_where_its_only_checkpoint_is_one_to_be_written(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.store.gate.clear()
        state, _ = await w.state(1)
        w.persister.publish(state)
        w.release(state)
        await w.persister.wait_resumable(KEY)  # The pool has one.
        await w.persister.wait_resumable(KEY, {state.windows[1].chain_hash})
        earlier = asyncio.create_task(w.persister.wait_resumable(KEY, {b"none", *state.captured}))
        cut, _ = await w.state(2, seed=1)
        w.pool.pieces.release(cut.table.pieces)
        cut = replace(cut, table=replace(cut.table, pieces=()), windows=cut.windows[:1])
        w.persister.publish(cut)
        w.release(cut)
        waiting = asyncio.create_task(w.persister.wait_resumable(KEY))
        await w.persister.wait_resumable(KEY._replace(agent_id="other"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert not earlier.done(), "a prompt that leaves the conversation needs the one before"
        w.store.gate.set()
        await waiting
        await earlier
        assert [version.number for version, _, _ in w.store.published] == [1, 2]


def _third_write_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = transport.write_block, []

    def full(path: str, *arguments: Any) -> Any:
        calls.append(path)
        if len(calls) == 3:
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *arguments)

    monkeypatch.setattr(transport, "write_block", full)


async def test_what_is_forgotten_is_not_written_and_what_is_being_written_is_waited_for(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.store.gate.clear()
        states = [(await w.state(version, seed=seed))[0] for version, seed in ((1, 0), (2, 1))]
        for state in states:
            w.persister.publish(state)
            w.release(state)
        await asyncio.sleep(0)
        forgetting = asyncio.create_task(w.persister.forget(KEY))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not forgetting.done(), "the first is being written"
        w.store.gate.set()
        await forgetting
        await w.persister.flush(5)
        assert [version.number for version, _, _ in w.store.published] == [1]
        assert w.persister.tables(w.model) == [] and w.pool.full.free == 12


@pytest.mark.parametrize(
    ("fail", "break_writes"),
    [(Unavailable("gone"), None), (ZeroDivisionError("a bug"), None), (None, _third_write_fails)],
)
async def test_a_failed_publish_leaves_no_file_and_is_counted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fail: Exception | None,
    break_writes: Callable[[pytest.MonkeyPatch], None] | None,
) -> None:
    if break_writes:
        break_writes(monkeypatch)
    async with world(tmp_path, fail) as w:
        state, _ = await w.state(1)
        w.persister.publish(state)
        await w.persister.flush(10)
        w.release(state)
        assert not list(tmp_path.iterdir())
        assert w.registry.get_sample_value("agentmem_cache_store_failures_total", {"model_id": "m"}) == 1
        assert "blocks were not written" in caplog.text
