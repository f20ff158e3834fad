"""Writing KV after turns, in the background. Failures only cost time later."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from agentmem import tracing
from agentmem.errors import AgentmemError
from agentmem.kv.blockfile import BLOCK_TOKENS, BlockHeader, FileName
from agentmem.kv.ledger import Version
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.validation import AgentKey
from inference_service.engine.paged.arena import Reading
from inference_service.engine.thread import EngineThread
from inference_service.metrics import WorkerMetrics
from inference_service.models.loaded import LoadedModel
from inference_service.pool.kv import Table
from inference_service.storage import transport
from inference_service.storage.client import StoreClient

log = logging.getLogger(__name__)

WAIT_SECONDS = 5.0
_REST_SECONDS: Final = 2.0
"""A state waits so long for its successor: the block at its end is written every few turns."""
_IDLE_SECONDS: Final = 0.1
"""After the last turn; then states are written at once."""
_GIVE_WAY_SECONDS: Final = 0.1
"""A file gives way to prompts so long. First tokens (p95) of 32 agents of Llama 3.1 8B on an H100 took 454 and 395 ms
so, 519 and 412 beside files.
"""
_LATE_SECONDS: Final = 5.0
"""Older states give way no more."""
_LOOK_SECONDS: Final = 0.01


@dataclass(frozen=True, eq=False)
class State:
    """An agent's state to write: headers of blocks and windows, and where those in memory are; the rest is on disk or
    lost.

    The last window is in `table`, others in `captured` by chain hash. `trace` is the turn's, `since` the first
    unwritten state's time.
    """

    key: AgentKey
    version: Version
    model: LoadedModel
    table: Table
    blocks: Sequence[BlockHeader]
    windows: Sequence[BlockHeader] = ()
    captured: Mapping[bytes, Table] = field(default_factory=dict)
    trace: tracing.Trace | None = field(default_factory=tracing.current)
    since: float = field(default_factory=time.monotonic)

    @property
    def tables(self) -> list[Table]:
        return [self.table, *self.captured.values()]

    def extends(self, older: "State") -> bool:
        """Return whether the older state's full blocks are this one's, too."""
        full = sum(header.token_count == BLOCK_TOKENS for header in older.blocks)
        return not full or (
            len(self.blocks) >= full and self.blocks[full - 1].chain_hash == older.blocks[full - 1].chain_hash
        )

    def after(self, older: "State") -> "State":
        """Return this state with an older unwritten one's windows that it needs."""
        names = {header.chain_hash for header in self.windows}
        taken_over = {name: window for name, window in older.captured.items() if name in names}
        return replace(self, captured={**taken_over, **self.captured}, since=older.since)

    def read(self, header: BlockHeader) -> Reading | None:
        """Begin to read a block or window; None if it is not in memory. Engine thread."""
        arenas, table = self.model.arenas, self.table
        if not header.window:
            return arenas.read_block(table.blocks[header.first_token // BLOCK_TOKENS], header.token_count)
        found = self.captured.get(header.chain_hash)
        if found is None and table.pieces and header.first_token + header.token_count == table.tokens:
            found = table
        if found is None:
            return None
        return arenas.read_checkpoint(found.checkpoint)


@dataclass(eq=False, repr=False)
class Persister:
    """Publishes states one after the other. Event loop; files on other threads.

    Blocks stay in the pool until written, copied one by one between the engine's steps. A newer state replaces a
    waiting one that it extends; left branches are written, because snapshots have them.
    """

    engine: EngineThread
    store: StoreClient
    metrics: WorkerMetrics
    _waiting: list[State] = field(default_factory=list, init=False)
    _writing: State | None = field(default=None, init=False)
    _waiters: int = field(default=0, init=False)
    _written: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _published_at: float = field(default=0.0, init=False)

    def publish(self, state: State) -> None:
        """Write missing files and publish the state; its table is held until then."""
        for table in state.tables:
            state.model.memory.pool.acquire(table)
        places = [at for at, older in enumerate(self._waiting) if older.key == state.key and state.extends(older)]
        place = places[-1] if places else len(self._waiting)
        if places:
            older, new = self._waiting.pop(place), state.captured
            state = state.after(older)
            for name in state.captured.keys() - new.keys():
                state.model.memory.pool.acquire(state.captured[name])
            _release(older)
        self._published_at = time.monotonic()
        self._waiting.insert(place, state)  # In the older one's place: an agent that speaks often is written, too.
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def give_up(self, model: LoadedModel) -> None:
        """Drop a model's waiting states, for their memory."""
        if dropped := self._drop(lambda state: state.model is model):
            self.metrics.store_failures.labels(model.model_id).inc(dropped)
            log.warning("the KV of %d turns is given up unwritten, to make room; the ledger has them", dropped)

    async def leave(self, model: LoadedModel, seconds: float) -> None:
        """Write a model's states within `seconds`; give up the rest."""
        await self._wait(lambda state: state.model is model, seconds)
        self.give_up(model)
        await self._wait(lambda state: state.model is model)

    async def forget(self, key: AgentKey) -> None:
        """Drop an agent's waiting states, and await the one being written."""
        self._drop(lambda state: state.key == key)
        await self._wait(lambda state: state.key == key)

    def tables(self, model: LoadedModel) -> list[Table]:
        return [table for state in self._unwritten() if state.model is model for table in state.tables]

    async def flush(self, seconds: float) -> None:
        await self._wait(lambda _: True, seconds)

    async def wait_written(self, key: AgentKey, seconds: float = WAIT_SECONDS) -> None:
        await self._wait(lambda state: state.key == key, seconds)

    async def wait_resumable(self, key: AgentKey, names: Collection[bytes] = ()) -> None:
        """Wait if an agent's last turn left its only checkpoint to be written: after a cut answer of a recurrent model,
        or if the next turn leaves the conversation at one of `names`.
        """

        def needed(state: State) -> bool:
            wanted = not state.table.pieces or not state.captured.keys().isdisjoint(names)
            return state.key == key and bool(state.captured) and wanted

        await self._wait(needed, WAIT_SECONDS)

    def _unwritten(self) -> list[State]:
        return [*self._waiting, *([self._writing] if self._writing else [])]

    def _drop(self, matches: Callable[[State], bool]) -> int:
        dropped = [state for state in self._waiting if matches(state)]
        for state in dropped:
            self._waiting.remove(state)
            _release(state)
        if dropped:
            self._tell()
        return len(dropped)

    def _tell(self) -> None:
        self._written.set()
        self._written = asyncio.Event()

    async def _wait(self, matches: Callable[[State], bool], seconds: float | None = None) -> None:
        self._waiters += 1
        try:
            async with asyncio.timeout(seconds):
                while any(map(matches, self._unwritten())):
                    await self._written.wait()
        except TimeoutError:
            pass
        finally:
            self._waiters -= 1

    async def _run(self) -> None:
        while self._waiting:
            await self._rest()
            if not self._waiting:  # They were given up meanwhile.
                break
            self._writing = self._waiting.pop(0)
            tracing.enter(self._writing.trace)
            written = asyncio.create_task(self._write(self._writing))
            await asyncio.wait([written])
            model_id = self._writing.key.model_id
            _release(self._writing)
            self._writing = None
            self._tell()
            if error := written.exception():
                self.metrics.store_failures.labels(model_id).inc()
                known = isinstance(error, AgentmemError | OSError)
                message = "blocks were not written; the ledger has the turn"
                log.warning("%s: %s", message, error, exc_info=None if known else error)
                error.__traceback__ = None  # It may hold a view of an arena, which the next write would copy.
            del written, error
        self._task = None

    async def _write(self, state: State) -> None:
        started = time.monotonic()
        headers = {FileName.of(header): header for header in (*state.blocks, *state.windows)}
        paths = await self.store.stage(state.key.namespace, headers)
        done = False
        try:
            written = {
                name: file
                for name, header in headers.items()
                if name in paths and (file := await self._write_file(state, header, paths[name])) is not None
            }
            there = [name for name in headers if name not in paths or name in written]
            await self.engine.confirm()
            await self.store.publish(state.key, state.version, [*written.values()], there, state.model.fingerprint)
            done = True
        finally:
            if not done:
                await transport.abandon(paths.values())
        model_id = state.key.model_id
        self.metrics.store_seconds.labels(model_id).observe(time.monotonic() - started)
        self.metrics.store_bytes.labels(model_id).inc(sum(file.size_bytes for file in written.values()))

    def _is_wanted(self, state: State) -> bool:
        return bool(self._waiters or state.model.memory.admission.waiting)

    async def _rest(self) -> None:
        """Wait for the first state's successor, while turns run and half of the pool is free."""
        while self._waiting and not self._is_wanted(state := self._waiting[0]):
            engine, blocks = state.model.engine, state.model.memory.pool.full
            busy = engine.prompts or engine.running or time.monotonic() < self._published_at + _IDLE_SECONDS
            if not busy or 2 * blocks.used > blocks.capacity or time.monotonic() > state.since + _REST_SECONDS:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _give_way(self, state: State) -> None:
        """Wait while turns are planned or queue: file threads hold the interpreter."""
        until = min(time.monotonic() + _GIVE_WAY_SECONDS, state.since + _LATE_SECONDS)
        engine = state.model.engine
        while engine.prompts and not self._is_wanted(state) and time.monotonic() < until:  # noqa: ASYNC110 - no event
            await asyncio.sleep(_LOOK_SECONDS)

    async def _write_file(self, state: State, header: BlockHeader, path: str) -> pb.StoredFile | None:
        await self._give_way(state)
        reading = await self.engine.call(lambda: state.read(header))
        if reading is None:
            return None
        data = await asyncio.to_thread(reading)
        del reading
        token_ids = b"" if header.window else state.model.memory.pool.full.tokens_of(header.chain_hash)
        return await transport.write(path, header, data, state.model.geometry, token_ids)


def _release(state: State) -> None:
    for table in state.tables:
        state.model.memory.pool.release(table)
