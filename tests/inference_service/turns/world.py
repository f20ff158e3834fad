"""Turns in one process, over the real engine and a small pool; only the store is a directory and a dictionary."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from agentmem.errors import Aborted
from agentmem.kv.blockfile import FileName, parse
from agentmem.kv.hints import TurnHints
from agentmem.kv.ledger import NO_VERSION, Ledger, TurnPlace, Version, shared_tokens
from agentmem.v1 import cache_store_pb2, inference_pb2, types_pb2
from agentmem.validation import AgentKey
from benchmarks.loading import load
from inference_service.domain import TokensInput, TurnInput, TurnRequest
from inference_service.engine.paged.store import KVStore
from inference_service.engine.thread import EngineThread
from inference_service.memory.match import MatchLimits
from inference_service.memory.speeds import Speeds
from inference_service.metrics import WorkerMetrics
from inference_service.models.capability import QuantizationSettings
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.pool.kv import Space
from inference_service.pool.memory import ModelMemory, Sizes
from inference_service.storage.client import Opened
from inference_service.threads import WorkerThreads
from inference_service.turns.locks import AgentLocks
from inference_service.turns.persisting import Persister
from inference_service.turns.planning import TurnPlanner
from inference_service.turns.pool_writer import PoolWriter
from inference_service.turns.prefetching import Prefetched, Prefetcher
from inference_service.turns.restoring import Restorer
from inference_service.turns.runner import TurnRunner
from inference_service.turns.stream import TurnStream
from inference_service.turns.summarizing import Summarizer
from inference_service.turns.turn_log import TurnLog
from tests.oracle import Oracle

BLOCKS, PIECES = 5, 12
TOLERANCE = 1e-3
"""The largest difference of log-probabilities."""
_TO_THE_END = types_pb2.Sampling(ignore_eos=True)


class NoSnapshots:
    """A store whose agents have left no branch."""

    async def find_snapshot(self, *_: object) -> None:
        return None


class Store(NoSnapshots):
    """Ledgers in memory, files in a directory. Slow at random, so that much happens meanwhile."""

    def __init__(self, directory: Path, dice: random.Random) -> None:
        self.ledgers: dict[AgentKey, tuple[Version, Ledger]] = {}
        self.committed: dict[tuple[AgentKey, str], cache_store_pb2.CommittedTurn] = {}
        self.ended_hints: list[AgentKey] = []
        self.policies: dict[AgentKey, types_pb2.ContextPolicy.ValueType] = {}
        self.files: dict[FileName, cache_store_pb2.StoredFile] = {}
        self._parents: dict[FileName, bytes] = {}
        self._directory = directory
        self._dice = dice
        self._staged = 0

    async def open(
        self,
        key: AgentKey,
        known: Version = NO_VERSION,
        request_id: str = "",
        block_hashes: Iterable[bytes] = (),
        window_hashes: Iterable[bytes] = (),
        peek: bool = False,
        turn_agent_id: str = "",
    ) -> Opened:
        await self._pause()
        version, ledger = self.ledgers.get(key, (NO_VERSION, Ledger()))
        blocks = {name: self.files[FileName.block(name)] for name in block_hashes if FileName.block(name) in self.files}
        windows = {n: self.files[FileName.window(n)] for n in window_hashes if FileName.window(n) in self.files}
        turn = self.committed.get((key, request_id)) if request_id else None
        policy = self.policies.get(key, types_pb2.CONTEXT_POLICY_UNSPECIFIED)
        ledger_sent = None if version == known != NO_VERSION else ledger
        return Opened(version, ledger_sent, blocks, windows, turn=turn, context_policy=policy)

    async def find_block(
        self, namespace: str, fingerprint: str, parent: bytes, token_ids: bytes, peek: bool = False
    ) -> cache_store_pb2.StoredFile | None:
        await self._pause()
        behind = [file for name, file in self.files.items() if file.token_ids and self._parents[name] == parent]
        found = max(behind, key=lambda file: shared_tokens(file.token_ids, token_ids), default=None)
        return found if found is not None and shared_tokens(found.token_ids, token_ids) else None

    async def commit(self, commit: cache_store_pb2.CommitTurnRequest) -> tuple[Version, None]:
        await self._pause()
        key = AgentKey.from_proto(commit.key)
        version, ledger = self.ledgers.get(key, (NO_VERSION, Ledger()))
        if version != Version.from_proto(commit.base):
            raise Aborted("another writer was first")
        ledger = ledger.kept(commit.keep_tokens)
        pieces = [commit.text[a:b] for a, b in pairwise([0, *commit.offsets])]
        carried = [TurnPlace.from_proto(turn) for turn in commit.carried_turns]
        added = commit.token_ids, pieces, commit.tokenizer_hash, commit.generated_tokens, carried
        ledger = replace(ledger.followed_by(*added), opening_bytes=commit.opening_bytes)
        self.ledgers[key] = Version(version.uid or str(self._dice.random()), version.number + 1), ledger
        if commit.ends_turn_hint:
            self.ended_hints.append(key)
        turn = cache_store_pb2.CommittedTurn(request_digest=commit.request_digest, record=commit.record)
        self.committed[key, commit.request_id] = turn
        return self.ledgers[key][0], None

    async def stage(self, namespace: str, names: Iterable[FileName]) -> dict[FileName, str]:
        await self._pause()
        paths = {}
        for name in names:
            if name not in self.files:
                self._staged += 1
                paths[name] = str(self._directory / f"{self._staged}.safetensors")
        return paths

    async def publish(
        self, key: AgentKey, version: Version, files: Iterable[cache_store_pb2.StoredFile], *rest: Any
    ) -> None:
        await self._pause()
        published = {FileName.from_proto(file): file for file in files}
        self.files |= published
        self._parents |= {name: _parent(file.path) for name, file in published.items()}

    async def quarantine(self, namespace: str, name: FileName, reason: str) -> None:
        pytest.fail(f"a file is damaged: {reason}")

    async def _pause(self) -> None:
        for _ in range(self._dice.randrange(6)):
            await asyncio.sleep(0)


def _parent(path: str) -> bytes:
    data = Path(path).read_bytes()
    return parse(data, len(data))[0].parent


@dataclass
class Models:
    loaded: LoadedModel

    def slot(self, model_id: str) -> None:
        assert model_id == self.loaded.model_id

    @asynccontextmanager
    async def use(self, model_id: str) -> AsyncIterator[LoadedModel]:
        self.slot(model_id)
        yield self.loaded


@dataclass
class Answer:
    started: inference_pb2.Started = field(default_factory=inference_pb2.Started)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version: int = 0

    @property
    def reused(self) -> int:
        return sum(tier.tokens for tier in self.started.cache.cached)


@dataclass
class Worker:
    """The parts of a worker that turns need."""

    engine: EngineThread
    model: LoadedModel
    store: Store
    locks: AgentLocks
    hints: TurnHints
    persister: Persister
    runner: TurnRunner
    prefetcher: Prefetcher
    speeds: Speeds
    registry: CollectorRegistry

    def start(self, agent: str, ids: Iterable[int], max_tokens: int | None = 4, **arguments: Any) -> TurnStream:
        return self.say(agent, TokensInput(tuple(ids)), max_tokens, **arguments)

    def say(
        self,
        agent: str,
        said: TurnInput,
        max_tokens: int | None = 4,
        sampling: types_pb2.Sampling = _TO_THE_END,
        **arguments: Any,
    ) -> TurnStream:
        return self.runner.start(
            TurnRequest(
                AgentKey("n", agent, "m"),
                said,
                b"",
                sampling=sampling,
                max_tokens=max_tokens,
                top_logprobs=0,
                **arguments,
            )
        )

    async def turn(self, agent: str, ids: Iterable[int], max_tokens: int = 4, **arguments: Any) -> Answer:
        return await answer(self.start(agent, ids, max_tokens, **arguments))

    async def prefetch(self, agent: str) -> Prefetched:
        key = AgentKey("n", agent, "m")
        async with self.locks.hold(key):
            return await self.prefetcher.prefetch(key, self.model)

    async def idle(self) -> None:
        """Wait until nothing is in flight and all is written; then the pool must add up."""
        async with asyncio.timeout(60):
            while not self.model.memory.admission.idle or self.runner._turns or self.persister.tables(self.model):
                await asyncio.sleep(0.001)
        self.model.memory.check_integrity()
        assert not self.model.memory.pool.broken.is_set()

    async def at_rest(self) -> None:
        """Wait until nothing is in flight, and the engine's thread has done all that it was asked."""
        await self.idle()
        await self.engine.call(lambda: None)


async def answer(turn: TurnStream, cancel_after: int | None = None) -> Answer:
    """A turn to its end, or cancelled when it has said so many things."""
    found, said = Answer(), 0
    async for event in turn.events():
        if event.HasField("started"):
            found.started = event.started
        elif event.HasField("delta"):
            found.token_ids += event.delta.token_ids
            found.logprobs += [token.logprob for token in event.delta.logprobs]
        else:
            found.version = event.finished.version.version
        said += 1
        if said == cancel_after:
            turn.cancel()
    return found


def difference(oracle: Oracle | Path, ids: Sequence[int], found: Answer) -> float:
    """Between the answer's log-probabilities and those of a recomputation."""
    oracle = Oracle(oracle) if isinstance(oracle, Path) else oracle
    wanted = oracle.logprobs_of([*ids, *found.token_ids], len(ids))
    return float(np.abs(wanted - np.array(found.logprobs)).max())


def prompt(length: int, number: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(number).integers(3, 250, length)]


@asynccontextmanager
async def working(
    directory: Path,
    tmp_path: Path,
    blocks: int = BLOCKS,
    pieces: int = PIECES,
    checkpoints: int = 2,
    seed: int = 0,
    room_wait: float = 30,
    quantization: QuantizationSettings | None = None,
    segment_blocks: int | None = None,
) -> AsyncIterator[Worker]:
    """A worker with a pool of so many blocks, and of so many pieces, or as many as so many checkpoints take. Segments
    have so many blocks of the arena; the pool's are a sixteenth.
    """
    engine = EngineThread()
    engine.start()
    hashes = ContentHashes(tmp_path / "weights.json")
    loaded = await engine.call(
        lambda: load("m", str(directory), pool_bytes=1 << 22, quantization=quantization, hashes=hashes)
    )
    hints = TurnHints()
    pieces = 0 if loaded.geometry.resumes_anywhere else max(pieces, checkpoints * loaded.geometry.checkpoint_pieces)
    segments = segment_blocks, None
    model = replace(
        loaded,
        arenas=await engine.call(lambda: KVStore(loaded.geometry, blocks, pieces, loaded.codecs, segments)),
        memory=ModelMemory(loaded.geometry, Sizes(Space(blocks, pieces), 1 << 30), hints, arrays=True),
    )
    model.engine.store = model.arenas
    model.engine.asked = lambda: engine.asked
    engine.attach(model.engine.step)
    (tmp_path / "files").mkdir()
    store = Store(tmp_path / "files", random.Random(seed))
    speeds = Speeds()
    registry = CollectorRegistry()
    metrics, locks = WorkerMetrics(registry, ["m"]), AgentLocks()
    persister = Persister(engine, cast(Any, store), metrics)
    restorer = Restorer(cast(Any, store), metrics, 16, speeds, engine)
    threads, model.memory.wait = WorkerThreads(), room_wait
    model.memory.in_flight = lambda: persister.tables(model)
    planner = TurnPlanner(cast(Any, store), threads, MatchLimits(16), 64)
    pool_writer = PoolWriter(engine, threads, persister)
    runner = TurnRunner(
        cast(Any, Models(model)),
        engine,
        threads,
        cast(Any, store),
        planner,
        Summarizer(engine, threads, planner, restorer),
        restorer,
        pool_writer,
        persister,
        TurnLog(metrics, 64),
        locks=locks,
        hints=hints,
        max_requests=64,
    )
    try:
        prefetcher = Prefetcher(engine, threads, cast(Any, store), restorer, pool_writer, metrics)
        yield Worker(engine, model, store, locks, hints, persister, runner, prefetcher, speeds, registry)
    finally:
        await runner.drain(1)
        await engine.stop(10)
