"""Loads wanted models one by one, and unloads others.

    wanted → opened (fetched, checked, named) → its turn → victims drain, are written, leave → loaded → serves

Models queue when opened, so that no download delays others. A swap ends no request, and is called off if nobody waits.
A minimum residency keeps two clients from swapping always.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import mlx.core as mx

from agentmem import layout
from agentmem.errors import AgentmemError, Internal, Unavailable
from agentmem.load_stages import LoadStage
from agentmem.process import logs
from agentmem.process.models import RegisteredModel
from agentmem.process.shielding import run_shielded
from inference_service import heap
from inference_service.engine.headroom import Headroom
from inference_service.engine.paged.store import KVStore
from inference_service.engine.thread import EngineThread, Task
from inference_service.models.fitting import Resident, make_room
from inference_service.models.loaded import LoadedModel
from inference_service.models.loading import Loader
from inference_service.models.measuring import Measuring
from inference_service.models.pressure import ON_MACOS, PressureWatch
from inference_service.models.slots import ModelSlot, State
from inference_service.pool.growing import PoolGrowth
from inference_service.pool.kv import Closed

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_WRITE_SECONDS = 60.0
"""The rest of a leaving model's KV is computed again."""

_RELIEVE_SECONDS = 5.0


class ModelListener(Protocol):
    def registered(self, model_id: str) -> None:
        """A model was pulled."""

    def arrived(self, model: LoadedModel, seconds: float) -> None:
        """The model serves after `seconds`."""

    async def leaving(self, model: LoadedModel, seconds: float) -> None:
        """Write agents' KV within `seconds`, and forget the unused model."""

    def left(self, model: LoadedModel, reason: str) -> None:
        """It is out of memory, for a "swap", a "request" or its "ttl"."""

    def failed(self, model_id: str) -> None:
        """A load failed."""


class Swapper:
    """Event loop only. Requests wait for `swap_wait`, models stay for `min_residency` seconds."""

    def __init__(
        self,
        registered: Mapping[str, RegisteredModel],
        engine: EngineThread,
        loader: Loader,
        listener: ModelListener,
        *,
        swap_wait: float,
        min_residency: float,
    ) -> None:
        self.default = next(iter(registered))
        self.slots = {name: ModelSlot(model) for name, model in registered.items()}
        self._swap_wait = swap_wait
        self._engine = engine
        self._loader = loader
        self._listener = listener
        self._min_residency = min_residency
        self._queue: list[ModelSlot] = []
        self._changed = asyncio.Event()
        self._moving = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False
        self._measuring = Measuring(loader, lambda slot: self._spawn(self._load_measured(slot)))
        self.pressure = PressureWatch(engine, self._all_loaded)

    def _begin(self) -> None:
        self._spawn(self._load_queued())
        self._spawn(self._unload_idle())
        if ON_MACOS:
            self._spawn(self.pressure.watch())

    async def stop(self) -> None:
        """Stop loading, and refuse waiters. A leaving model gets a moment."""
        self._stopped = True
        self._loader.stop()
        self._measuring.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=layout.REFUSED_SECONDS)
        for slot in self.slots.values():
            slot.refuse(_shutting_down())

    def _want(self, slot: ModelSlot) -> None:
        """Open and queue a model once."""
        if self._stopped:
            slot.refuse(_shutting_down())
            return
        slot.wanted = True
        if slot.state in (State.MODEL_STATE_REGISTERED, State.MODEL_STATE_FAILED):
            slot.start_loading()
            self._spawn(self._open(slot))

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _unload(self, slot: ModelSlot, reason: str, wanted: Callable[[], bool]) -> int:
        """Return the bytes freed; 0 if not `wanted` any more."""
        async with self._moving:
            if slot.loaded is None or not slot.open or not wanted():
                return 0
            freed = slot.loaded.weight_bytes + slot.loaded.memory.pool.open_bytes
            await self._drain_and_release([slot], reason, lambda: True)
            return freed

    def _waits_for(self, slot: ModelSlot) -> str:
        if slot.progress.stage is not LoadStage.WAIT:
            return f"{slot.progress.stage}, {slot.progress.share:.0%}"
        draining = [each for each in self.slots.values() if each.state == State.MODEL_STATE_DRAINING]
        if draining:
            # No number: the client may be none of its users'.
            return f"{', '.join(repr(each.model_id) for each in draining)} must end its requests first"
        before = self._queue.index(slot) if slot in self._queue else 0
        return f"{before} other models are loaded first" if before else "others may stay loaded for a while"

    # Coming.

    async def _open(self, slot: ModelSlot) -> None:
        try:
            slot.opened = await self._loader.open(slot.registered, slot.report)
        except Exception as error:  # noqa: BLE001 - the rim of a load: its waiters get the error
            self._fail(slot, error)
            return
        slot.info = slot.opened.info
        slot.report(LoadStage.WAIT, 0.0)
        self._queue.append(slot)
        self._notify()

    async def _load_queued(self) -> None:
        while True:
            while not self._queue:
                await self._changed.wait()
            slot = self._queue[0]
            try:
                await self._swap_in(slot)
            except Exception as error:  # noqa: BLE001 - the rim of a load: its waiters get the error
                self._fail(slot, error)
                with suppress(AgentmemError):
                    await self._engine.call(_sweep)
                    await self._engine.call(partial(self._loader.wiring.leave, slot.model_id))
            finally:
                self._queue.remove(slot)

    async def _swap_in(self, slot: ModelSlot) -> None:
        while slot.wanted and (seconds := self._residency_left(self._victims(slot))) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
        async with self._moving:
            victims = self._victims(slot)
            if not slot.wanted or not await self._drain_and_release(victims, "swap", lambda: slot.wanted):
                slot.call_off()
                return
            try:
                await self._load(slot)
            except Exception:
                if len(self._queue) == 1:  # victims serve again, unless others wait
                    for victim in victims:
                        self._want(victim)
                raise

    def _victims(self, slot: ModelSlot) -> list[ModelSlot]:
        """Raises FailedPrecondition."""
        assert slot.opened is not None
        going = make_room(slot.model_id, slot.opened.needs, self._residents(), self._loader.limits)
        return [self.slots[name] for name in going]

    def _residents(self) -> list[Resident]:
        return [slot.resident() for slot in self.slots.values() if slot.loaded is not None]

    def _residency_left(self, slots: Sequence[ModelSlot]) -> float:
        now = time.monotonic()
        return max((slot.loaded_at + self._min_residency - now for slot in slots), default=0.0)

    async def _load(self, slot: ModelSlot) -> None:
        opened, slot.opened = slot.opened, None
        assert opened is not None
        began = time.monotonic()
        others_decode = partial(self._others_decode, slot)
        async with self._measuring.held():
            model = await self._loader.load(
                opened, self._residents(), slot.report, others_decode, measure_first=slot.measured
            )
        if heap.kept():
            await self._engine.call(heap.tidy)
        model.engine.asked = lambda: self._engine.asked
        model.engine.flush = self._engine.flush
        growth = model.memory.admission.growth
        growth.closed = partial(self._give_back, model.arenas, growth)
        model.memory.admission.pressure = lambda: self.pressure.level
        relieve = partial(_relieve, asyncio.get_running_loop(), growth, model.arenas)
        model.engine.headroom = Headroom(model.activation_bytes, relieve, cost=model.cost)
        self._engine.attach(model.engine.step)
        self._listener.arrived(model, time.monotonic() - began)
        slot.serve(model)
        if not model.setup.final:
            self._measuring.begin(slot, opened)

    def _give_back(self, arenas: KVStore, growth: PoolGrowth, closed: Closed) -> None:
        with suppress(Unavailable):  # the engine is dead; its memory goes with the process
            released = self._engine.submit(lambda: arenas.release(closed.full, closed.pieces))
            asyncio.wrap_future(released).add_done_callback(lambda _: growth.given_back(closed))

    def _others_decode(self, slot: ModelSlot) -> bool:
        return any(model.engine.running for model in self._all_loaded() if model is not slot.loaded)

    def _all_loaded(self) -> list[LoadedModel]:
        return [loaded for slot in self.slots.values() if (loaded := slot.loaded) is not None]

    def _fail(self, slot: ModelSlot, error: Exception) -> None:
        known = isinstance(error, AgentmemError)
        shown = error if isinstance(error, AgentmemError) else Internal(type(error).__name__)
        log.warning("model %s cannot be loaded: %s", slot.model_id, shown, exc_info=None if known else error)
        # A traceback's frames hold the weights.
        for each in (error, error.__cause__, error.__context__):
            if each is not None:
                each.__traceback__ = None
        self._listener.failed(slot.model_id)
        slot.fail(shown)

    # Going.

    async def _drain_and_release(self, slots: Sequence[ModelSlot], reason: str, wanted: Callable[[], bool]) -> bool:
        """Release models after their last users, or return False if not `wanted`."""
        for slot in slots:
            slot.drain()
        try:
            while any(slot.users for slot in slots):
                if not wanted():
                    return False
                await self._changed.wait()
            for slot in slots:
                await run_shielded(self._leave_memory(slot, reason))
            return True
        finally:
            for slot in slots:
                if slot.loaded is not None:
                    slot.reopen()

    async def _leave_memory(self, slot: ModelSlot, reason: str) -> None:
        try:
            await self._release(slot, reason)
        finally:  # its frame had the model
            with suppress(Unavailable):
                if heap.kept():
                    await self._engine.call(heap.tidy)
                await self._engine.call(partial(self._loader.wiring.leave, slot.model_id))

    async def _release(self, slot: ModelSlot, reason: str) -> None:
        model = slot.loaded
        assert model is not None
        try:
            await self._listener.leaving(model, _WRITE_SECONDS)
        finally:  # its memory is gone in any case, and its waiters are not forgotten
            self._engine.detach(model.engine.step)
            slot.loaded = None
            async with self._measuring.held(leaving=slot):
                with suppress(Unavailable):  # the engine is dead; its memory goes with the process
                    await self._engine.call(model.release)
            self._loader.unloaded(model)
            slot.unloaded()
            if slot.wanted:
                self._want(slot)
            self._notify()
        self._listener.left(model, reason)
        logs.event(log, "model unloaded", model=slot.model_id, reason=reason)

    async def _unload_idle(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for slot in list(self.slots.values()):
                if slot.idle_too_long:
                    try:
                        await self._unload(slot, "ttl", partial(getattr, slot, "idle_too_long"))
                    except Exception:  # it is out of memory, and others must not wait
                        log.exception("model %s, which was idle for too long, did not leave in order", slot.model_id)

    async def _load_measured(self, slot: ModelSlot) -> None:
        """Load a model again, with what was measured, while nobody uses it."""
        model, waiter = slot.loaded, asyncio.get_running_loop().create_future()
        waiter.add_done_callback(lambda _: self._enters_and_leaves(slot, waiter))

        def idle() -> bool:
            if not slot.users and waiter not in slot.waiters:  # so it comes again at once
                slot.waiters.append(waiter)
                slot.wanted = True
            return not slot.users

        while model is not None and slot.loaded is model:
            try:
                if await self._unload(slot, "measured", idle):
                    return
            except Exception:  # it is out of memory, and comes again
                log.exception("model %s, which was measured, did not leave in order", slot.model_id)
                return
            await self._changed.wait()

    def _enters_and_leaves(self, slot: ModelSlot, waiter: "asyncio.Future[LoadedModel]") -> None:
        if not waiter.cancelled() and waiter.exception() is None:
            slot.leave()
            self._notify()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _relieve(loop: asyncio.AbstractEventLoop, growth: PoolGrowth, arenas: KVStore, nbytes: int) -> None:
    """Shrink a pool. Engine thread, which waits for the event loop."""
    asked = Task(partial(growth.give_up, nbytes), Future())
    loop.call_soon_threadsafe(asked.run)
    try:
        closed = asked.future.result(_RELIEVE_SECONDS)
    except TimeoutError:
        if asked.future.cancel():
            return
        closed = asked.future.result()  # it has begun: give back what it closes
    arenas.release(closed.full, closed.pieces)
    loop.call_soon_threadsafe(growth.given_back, closed)


def _shutting_down() -> Unavailable:
    return Unavailable("the worker is shutting down")


def _sweep() -> None:
    """Free a failed load's memory. Engine thread."""
    heap.tidy()
    mx.clear_cache()
