"""A persister over a real engine and a real arena, and a store that keeps files in a directory."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry

from agentmem import tracing
from agentmem.kv.blockfile import FileName
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
from inference_service.turns.persisting import Persister, State

KEY = AgentKey("n", "a", "m")
GEOMETRY = Geometry(2, mx.float32, FOUR_BITS, LayerGroup((1,), 2, 64, 64), LayerGroup((0,), 2, 64, 64, window=64))
TOKENS = 600
PIECES = GEOMETRY.checkpoint_pieces

Packed = dict[str, npt.NDArray[Any]]


class Store:
    """Stages in a directory, and remembers what was published.

    `gate` holds staging up, `asked` says that it has begun; `existing` needs no writing.
    """

    def __init__(self, directory: Path, fail: Exception | None = None) -> None:
        self.directory = directory
        self.fail = fail
        self.published: list[tuple[Version, list[cache_store_pb2.StoredFile], list[FileName]]] = []
        self.traces: list[tracing.Trace | None] = []
        self.existing: set[FileName] = set()
        self.asked, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def stage(self, namespace: str, names: Iterable[FileName]) -> dict[FileName, str]:
        wanted = list(names)
        self.asked.set()
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
        memory=SimpleNamespace(pool=pool, admission=SimpleNamespace(waiting=0)),
        engine=SimpleNamespace(prompts=0, running=0),
    )
    metrics = WorkerMetrics(registry)
    persister = Persister(engine, cast(Any, store), metrics)
    try:
        yield World(store, registry, engine, model, persister)
        await persister.flush(10)
        assert not persister.tables(cast(Any, model))
        pool.check_integrity([])
    finally:
        await engine.stop(5)
