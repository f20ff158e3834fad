"""Publishing in the background, from a real arena to real files: what is written, what a failure leaves behind."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from prometheus_client import CollectorRegistry

from agentmem import tracing
from agentmem.errors import Unavailable
from agentmem.kv.blockfile import FileName, digest
from agentmem.kv.ledger import Version
from agentmem.v1 import cache_store_pb2
from agentmem.validation import AgentKey
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.paged.passes import ArrayKVCache, Pass, Piece
from inference_service.engine.paged.store import KVStore
from inference_service.engine.quantization import FOUR_BITS, Quantized
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
PIECES = GEOMETRY.checkpoint_pieces

Packed = dict[str, npt.NDArray[Any]]


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


@dataclass(frozen=True)
class Computed:
    """K and V of a state as they were packed, [layers, kv_heads, tokens, width]: of full attention, and of the windows'
    layer."""

    full: Packed
    sliding: Packed


@dataclass
class World:
    store: Store
    registry: CollectorRegistry
    engine: EngineThread
    model: Any
    persister: Persister
    held: dict[tuple[int, ...], Table] = field(default_factory=dict)
    """All that a state's turn had reserved, by the state's blocks."""

    @property
    def pool(self) -> KVPool:
        return self.model.memory.pool

    async def state(self, version: int, tokens: int = TOKENS, seed: int = 0) -> tuple[State, Computed]:
        """A state in the pool, as a turn leaves it, with a window captured at 500."""
        ids = [(seed * 7 + i) % 50 for i in range(tokens)]
        blocks, pieces = (self.pool.full.allocate(-(-tokens // 256)), self.pool.pieces.allocate(2 * PIECES))

        def compute() -> tuple[Computed, list[Table]]:
            store: KVStore = self.model.arenas
            kv, packed, windows = store.sequence(blocks, pieces), [], []
            for start, stop in ((0, 500), (500, tokens)):
                of = Pass([Piece(kv, stop - start)])
                caches = cast(list[ArrayKVCache], store.caches(of))
                for cache in caches:
                    cache.update_and_fetch(*(mx.random.normal((1, 2, stop - start, 64)) for _ in range(2)))
                packed.append([cache.packed for cache in caches])
                written = store.taken(of, caches)
                mx.eval(written.state)
                written.put()
                assert kv.window is not None
                first = kv.window.kept_from(stop)
                windows.append(Table(stop, (), stop - first, tuple(kv.window.share(stop))))
            sliding, full = (joined(chunks) for chunks in zip(*packed, strict=True))
            return Computed(full, sliding), windows

        computed, (window, end) = await self.engine.call(compute)
        self.held[tuple(blocks)] = Table(tokens, tuple(blocks), 0, tuple(pieces))
        table = replace(end, blocks=tuple(blocks))
        windows = checkpoint_headers("f", "n", ids, {500: window.window_tokens, tokens: end.window_tokens})
        held = {windows[0].chain_hash: window}
        named = list(headers("f", "n", ids))
        return State(KEY, Version("u", version), self.model, table, named, windows, held), computed

    def release(self, state: State) -> None:
        """As if the turn was over, and the agent was evicted."""
        self.pool.release(self.held.pop(state.table.blocks))


def blocks_of(state: State) -> set[int]:
    return {block for table in state.tables for block in table.blocks}


def pieces_of(state: State) -> set[int]:
    return {piece for table in state.tables for piece in table.pieces}


def joined(chunks: Sequence[Any]) -> Packed:
    """The tensors of all chunks of a layer, by their names in a file."""
    return {
        f"{side}.{part}": np.concatenate([np.array(getattr(chunk["kv".index(side)], part)) for chunk in chunks], axis=2)
        for side in "kv"
        for part in Quantized._fields
    }


@asynccontextmanager
async def world(directory: Path, fail: Exception | None = None) -> AsyncIterator[World]:
    engine, registry, store = EngineThread(), CollectorRegistry(), Store(directory, fail)
    engine.start()
    arenas = await engine.call(lambda: KVStore(GEOMETRY, 12, 8 * PIECES))
    pool = KVPool(Space(12, 8 * PIECES), PIECES)
    model = SimpleNamespace(
        model_id="m",
        geometry=GEOMETRY,
        fingerprint="f",
        arenas=arenas,
        memory=SimpleNamespace(pool=pool),
        engine=SimpleNamespace(prompts=0),
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
        state, computed = await w.state(1)
        w.store.gate.clear()
        w.persister.publish(state)
        w.release(state)
        others = [await w.state(2, seed=seed) for seed in range(3)]
        for of in (blocks_of, pieces_of):
            assert not any(of(state) & of(other) for other, _ in others), "held until written"
        w.store.gate.set()
        await w.persister.flush(10)
        _, files, references = w.store.published[0]
        assert [FileName(f.kind, f.chain_hash) for f in files] == references
        assert len(files) == 3 + 2
        by_name = {FileName(f.kind, f.chain_hash): f for f in files}
        for header in (*state.blocks, *state.windows):
            file = by_name[FileName.of(header)]
            whole = computed.sliding if header.window else computed.full
            read = read_block(file.path, header, file.digest, GEOMETRY)
            assert read.keys() == whole.keys()
            for name, tensor in read.items():
                stop = header.first_token + header.token_count
                assert np.array_equal(tensor, whole[name][:, :, header.first_token : stop])
        size = sum(path.stat().st_size for path in tmp_path.iterdir())
        assert w.registry.get_sample_value("agentmem_cache_store_bytes_total", {"model_id": "m"}) == size
        assert digest(Path(files[0].path).read_bytes()) == files[0].digest
        for other, _ in others:
            w.release(other)


async def test_the_engine_does_not_wait_for_what_is_copied_to_a_file(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        state, computed = await w.state(1)
        awaited, copied = threading.Event(), threading.Event()
        read = w.model.arenas.read_block

        def read_slowly(block: int, tokens: int) -> Callable[[], Any]:
            reading = read(block, tokens)

            def taken() -> Any:
                awaited.set()
                assert copied.wait(10)
                return reading()

            return taken

        w.model.arenas.read_block = read_slowly
        w.persister.publish(state)
        await asyncio.to_thread(awaited.wait, 10)
        async with asyncio.timeout(5):
            await w.engine.call(lambda: None)
        copied.set()
        await w.persister.flush(10)
        [(_, files, _)] = w.store.published
        for file, header in zip(files, state.blocks, strict=False):
            found = read_block(file.path, header, file.digest, GEOMETRY)
            end = header.first_token + header.token_count
            assert all(
                np.array_equal(found[name], part[:, :, header.first_token : end])
                for name, part in computed.full.items()
            )
        w.release(state)


async def test_files_give_way_to_turns_that_are_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path) as w:
        monkeypatch.setattr(persisting, "_GIVE_WAY_SECONDS", 60.0)
        state, _ = await w.state(1)
        with w.persister.giving_way():
            w.persister.publish(state)
            await asyncio.sleep(0.05)
            assert not list(tmp_path.iterdir())
        await w.persister.flush(10)
        assert len(w.store.published) == 1
        w.release(state)


async def test_files_give_way_to_prompts_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most so long, and not where somebody waits for them."""
    async with world(tmp_path) as w:
        monkeypatch.setattr(persisting, "_GIVE_WAY_SECONDS", 60.0)
        states = [(await w.state(version, seed=version))[0] for version in (1, 2, 3)]
        w.model.engine.prompts = 1
        w.persister.publish(states[0])
        await asyncio.sleep(0.05)
        assert not list(tmp_path.iterdir())
        w.model.engine.prompts = 0
        await w.persister.flush(10)
        w.model.engine.prompts = 1
        w.persister.publish(states[1])
        await asyncio.sleep(0.05)
        assert len(w.store.published) == 1
        await w.persister.wait_written(KEY)
        monkeypatch.setattr(persisting, "_GIVE_WAY_SECONDS", 0.01)
        w.persister.publish(states[2])
        await w.persister.flush(10)
        assert [version.number for version, _, _ in w.store.published] == [1, 2, 3]
        for state in states:
            w.release(state)


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
