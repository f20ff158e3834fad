"""Turns in one process, over the real engine and a small pool; only the store is a directory and a dictionary."""

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from agentmem.blockfile import BLOCK_TOKENS
from agentmem.errors import Aborted, Cancelled, FailedPrecondition, ResourceExhausted
from agentmem.keys import AgentKey
from agentmem.v1 import cache_store_pb2, inference_pb2, types_pb2
from inference_service.domain import Sampling, TokensInput, TurnRequest
from inference_service.engine.generation import TurnJob
from inference_service.engine.tensors import Arenas
from inference_service.engine.thread import EngineThread
from inference_service.memory.ledger import NO_VERSION, Ledger, Version
from inference_service.memory.match import Limits
from inference_service.metrics import WorkerMetrics
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loading import LoadedModel, load
from inference_service.pool.kv import Space
from inference_service.pool.memory import ModelMemory
from inference_service.pool.sizing import Sizes
from inference_service.storage.choosing import Transfers
from inference_service.storage.client import Commit, FileName, Opened
from inference_service.turns.fetching import Fetcher
from inference_service.turns.keeping import Keeper
from inference_service.turns.locks import AgentLocks
from inference_service.turns.persisting import Persister
from inference_service.turns.planned import Prepared
from inference_service.turns.preparing import Preparer
from inference_service.turns.restoring import Restorer
from inference_service.turns.rooms import Rooms
from inference_service.turns.runner import TurnRunner
from inference_service.turns.running import RunningTurn
from tests.oracle import Oracle
from tests.tiny_models import write_gemma3, write_llama

TOLERANCE = 1e-3
BLOCKS, PIECES = 5, 12


class Store:
    """Ledgers in memory, files in a directory. Slow at random, so that much happens meanwhile."""

    def __init__(self, directory: Path, dice: random.Random) -> None:
        self.ledgers: dict[AgentKey, tuple[Version, Ledger]] = {}
        self.files: dict[FileName, cache_store_pb2.StoredFile] = {}
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
    ) -> Opened:
        await self._pause()
        version, ledger = self.ledgers.get(key, (NO_VERSION, Ledger()))
        blocks = {name: self.files[FileName.block(name)] for name in block_hashes if FileName.block(name) in self.files}
        windows = {n: self.files[FileName.window(n)] for n in window_hashes if FileName.window(n) in self.files}
        return Opened(version, None if version == known != NO_VERSION else ledger, blocks, windows)

    async def commit(self, key: AgentKey, commit: Commit) -> tuple[Version, None]:
        await self._pause()
        version, ledger = self.ledgers.get(key, (NO_VERSION, Ledger()))
        if version != commit.base:
            raise Aborted("another writer was first")
        ledger = ledger.kept(commit.keep_tokens)
        ledger = ledger.followed_by(commit.token_ids, commit.pieces, commit.tokenizer_hash, commit.generated_tokens)
        self.ledgers[key] = Version(version.uid or str(self._dice.random()), version.number + 1), ledger
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
        self.files |= {FileName(file.kind, bytes(file.chain_hash)): file for file in files}

    async def quarantine(self, namespace: str, name: FileName, reason: str) -> None:
        pytest.fail(f"a file is damaged: {reason}")

    async def _pause(self) -> None:
        for _ in range(self._dice.randrange(6)):
            await asyncio.sleep(0)


@dataclass
class Models:
    """One model, loaded."""

    loaded: LoadedModel

    def seat(self, model_id: str) -> None:
        assert model_id == self.loaded.model_id

    @asynccontextmanager
    async def use(self, model_id: str) -> AsyncIterator[LoadedModel]:
        self.seat(model_id)
        yield self.loaded


@dataclass
class Answer:
    """What a turn said."""

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
    persister: Persister
    runner: TurnRunner

    def start(self, agent: str, ids: Iterable[int], max_tokens: int = 4, **arguments: Any) -> RunningTurn:
        return self.runner.start(
            TurnRequest(
                AgentKey("n", agent, "m"),
                TokensInput(tuple(ids)),
                b"",
                sampling=Sampling(ignore_eos=True),
                max_tokens=max_tokens,
                top_logprobs=0,
                **arguments,
            )
        )

    async def turn(self, agent: str, ids: Iterable[int], max_tokens: int = 4, **arguments: Any) -> Answer:
        return await answer(self.start(agent, ids, max_tokens, **arguments))

    async def idle(self) -> None:
        """Wait until nothing is in flight and all is written; then the pool must add up."""
        async with asyncio.timeout(60):
            while not self.model.memory.admission.idle or self.runner._turns or self.persister.tables(self.model):
                await asyncio.sleep(0.001)
        self.model.memory.check_integrity([])
        assert not self.model.memory.pool.broken.is_set()


async def answer(turn: RunningTurn, cancel_after: int | None = None) -> Answer:
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


def prompt(length: int, number: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(number).integers(3, 250, length)]


@asynccontextmanager
async def working(
    directory: Path, tmp_path: Path, blocks: int = BLOCKS, seed: int = 0, room_wait: float = 30
) -> AsyncIterator[Worker]:
    """A worker with a pool of so many blocks, and of PIECES pieces of windows where the model has them."""
    engine = EngineThread()
    engine.start()
    hashes = ContentHashes(tmp_path / "weights.json")
    loaded = await engine.call(lambda: load("m", str(directory), pool_bytes=1 << 22, hashes=hashes))
    pieces = PIECES if loaded.geometry.sliding else 0
    model = replace(
        loaded,
        arenas=await engine.call(lambda: Arenas(loaded.geometry, blocks, pieces)),
        memory=ModelMemory(loaded.geometry, loaded.weight_bytes, Sizes(Space(blocks, pieces), 1 << 30)),
    )
    engine.attach(model.engine.tick)
    (tmp_path / "files").mkdir()
    store = Store(tmp_path / "files", random.Random(seed))
    metrics, locks = WorkerMetrics(CollectorRegistry()), AgentLocks()
    transfers = Transfers(cast(Any, store), "path", metrics)
    persister = Persister(engine, cast(Any, store), transfers, metrics)
    preparer = Preparer(Restorer(Fetcher(cast(Any, store), transfers, metrics), metrics, 16), Limits(16, 0.0), 64)
    runner = TurnRunner(
        cast(Any, Models(model)),
        engine,
        cast(Any, store),
        preparer,
        Keeper(engine, persister),
        persister,
        Rooms(persister, room_wait),
        metrics,
        locks=locks,
        max_requests=64,
        stream_buffer=1000,
    )
    try:
        yield Worker(engine, model, store, locks, persister, runner)
    finally:
        await runner.drain(1)
        await engine.stop(10)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("length", [40, 300])
async def test_a_prompt_that_was_prefilled_is_answered_and_kept(llama: Path, tmp_path: Path, length: int) -> None:
    """The tail of the prompt is in the pool, and the answer goes to a block of its own all the same."""
    async with working(llama, tmp_path) as worker:
        ids = prompt(length)
        await worker.turn("a", ids, generates=False)
        first = await worker.turn("a", ids)
        assert first.reused == length - 1
        second = await worker.turn("a", [*ids, *first.token_ids, 7, 8, 9])
        assert not worker.model.memory.pool.broken.is_set()
        assert second.reused == length + 4
        await worker.idle()


async def test_a_cancelled_turn_gives_its_memory_back_with_its_room(llama: Path, tmp_path: Path) -> None:
    """What is free in the books is free on the device, and not only when Python collects cycles."""
    async with working(llama, tmp_path) as worker:
        active = []
        gc.collect()
        gc.disable()
        try:
            for number in range(3):
                with pytest.raises(Cancelled):
                    await answer(worker.start(f"a{number}", prompt(600, number), 500), cancel_after=3)
                await worker.idle()
                await worker.engine.call(mx.clear_cache)
                active.append(mx.get_active_memory())
        finally:
            gc.enable()
            gc.collect()
        row = 600 * worker.model.geometry.bytes_per_token
        assert active[-1] - active[0] < row


@pytest.mark.parametrize("events", [1, 3])
async def test_a_cancelled_turn_holds_on_to_nothing(llama: Path, tmp_path: Path, events: int) -> None:
    """Its error is no reason to keep what it worked on, and with that a model that has been unloaded."""
    async with working(llama, tmp_path) as worker:
        gc.collect()
        gc.disable()
        try:
            with pytest.raises(Cancelled):
                await answer(worker.start("a", prompt(300), 500), cancel_after=events)
            await worker.idle()
            assert not [each for each in gc.get_objects() if isinstance(each, Prepared | TurnJob)]
        finally:
            gc.enable()
            gc.collect()


async def test_what_cannot_fit_is_refused_without_effect(llama: Path, tmp_path: Path) -> None:
    async with working(llama, tmp_path, blocks=4) as worker:
        await worker.turn("a", prompt(300))
        await worker.idle()
        with pytest.raises(FailedPrecondition):
            await worker.turn("b", prompt(900, 1), 200)
        assert AgentKey("n", "b", "m") not in worker.store.ledgers
        assert AgentKey("n", "a", "m") in worker.model.memory.hot
        await worker.idle()


async def test_a_hint_is_over_with_the_turn_that_it_is_of(llama: Path, tmp_path: Path) -> None:
    """Who was to speak next, and has, is an agent as any other: the next one in need of room takes its blocks."""
    async with working(llama, tmp_path) as worker:
        hints, key = worker.model.memory.hot.hints, AgentKey("n", "a", "m")
        unknown = hints.rank(key)
        hints.set({key: 1})
        with pytest.raises(Cancelled):
            await answer(worker.start("a", prompt(40), 50), cancel_after=2)
        assert hints.rank(key) != unknown, "a turn that comes to nothing leaves it"
        await worker.turn("a", prompt(40))
        assert hints.rank(key) == unknown


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


@pytest.mark.parametrize("write", [write_llama, write_gemma3], ids=["llama", "gemma3"])
async def test_many_agents_in_little_memory(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    """Turns of all kinds at once, with cancellations and deletions: answers are right, and the pool adds up."""
    (tmp_path / "m").mkdir()
    directory = write(tmp_path / "m")
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
            before = ledger.token_ids[: dice.choice([len(ledger), len(ledger), dice.randrange(len(ledger) + 1)])]
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
        worker.model.memory.admission.evicted = evicted.append
        await asyncio.gather(*(agent(name, worker) for name in ["a", "b", "c", "d", "e", ""]))
        await worker.idle()
    assert {"TIER_HOT", "NONE", "Cancelled"} <= set(outcomes)
    assert evicted
    for ids, found in finished:
        if found.reused and found.token_ids:
            wanted = oracle.logprobs_of([*ids, *found.token_ids], len(ids))
            assert np.abs(wanted - np.array(found.logprobs)).max() < TOLERANCE
