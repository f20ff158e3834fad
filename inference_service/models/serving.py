"""Models that serve: requests enter them, wait for them, and so make them come and go.

    wanted → opened (fetched, checked, named) → its turn → victims drain, are written, leave → loaded → serves

A request for a model that is not loaded waits on the model's slot. Wanted models are opened at once and in parallel,
and queue in the order in which that is done, so a download delays no other model. One model after the other then gets
its turn: the victims that make room for it take no new requests, end the running ones, have their agents' KV written,
and release their memory. A model is in the queue once, however many requests wait for it, and all of them enter
together; requests for a victim wait on its slot in turn. A model stays loaded for a minimum of time, so that two
alternating clients do not keep the worker swapping.

No running request is ended for a swap. A request that has waited too long is refused with a time to retry; the swap
goes on meanwhile. If all requests for the model have been cancelled, its swap is called off.
"""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any, Protocol

import mlx.core as mx

from agentmem import layout, logs
from agentmem.errors import AgentmemError, FailedPrecondition, Internal, NotFound, Unavailable
from agentmem.models import RegisteredModel
from agentmem.shielding import run_shielded
from inference_service.engine.thread import EngineThread
from inference_service.models.loaded import LoadedModel
from inference_service.models.loading import Loader
from inference_service.models.opening import ModelInfo
from inference_service.models.residency import Resident, make_room
from inference_service.models.slots import WAIT, ModelSlot, Progress, State

log = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0
_LOOK_SECONDS = 1.0
"""How often idle models are checked for their ttl."""
_WRITE_SECONDS = 60.0
"""How long the agents' KV of a leaving model may take to be written; the rest is computed again when it is needed."""


class ModelListener(Protocol):
    """Learns when a model comes or goes. Event loop."""

    def arrived(self, model: LoadedModel, seconds: float) -> None:
        """The model serves from now on; loading took `seconds`."""

    async def leaving(self, model: LoadedModel, seconds: float) -> None:
        """The model has no users any more: write its agents' KV, within so many seconds, and forget it."""

    def left(self, model: LoadedModel, reason: str) -> None:
        """The model is out of memory, because of a "swap", a "request" or its "ttl"."""

    def failed(self, model_id: str) -> None:
        """The model could not be loaded."""


class Models:
    """The registered models; loads what is wanted, one after the other, and unloads what must go. Event loop only.

    `swap_wait` is how many seconds a request waits for its model, `min_residency` how many a model stays at least.
    """

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
        self._engine = engine
        self._loader = loader
        self._listener = listener
        self._swap_wait = swap_wait
        self._min_residency = min_residency
        self._queue: list[ModelSlot] = []
        self._changed = asyncio.Event()
        self._moving = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False

    async def start(self) -> LoadedModel:
        """Begin to serve, and load the default model. Raises what loading raises; the others are served even so."""
        self._spawn(self._load_queued())
        self._spawn(self._unload_idle())
        return await self._load_and_leave(self.slots[self.default])

    async def stop(self) -> None:
        """Load and unload no more, and refuse all waiters. A model that is leaving gets a moment; the others stay."""
        self._stopped = True
        self._loader.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=layout.REFUSED_SECONDS)
        for slot in self.slots.values():
            slot.refuse(_shutting_down())

    # For requests.

    def slot(self, model_id: str) -> ModelSlot:
        """A model's slot. Raises NotFound for an unregistered model."""
        try:
            return self.slots[model_id]
        except KeyError:
            raise NotFound("model", model_id, f"registered are {', '.join(self.slots)}") from None

    def loaded(self, model_id: str) -> LoadedModel | None:
        """The model, if it is in memory at this moment."""
        slot = self.slots.get(model_id)
        return slot.loaded if slot else None

    async def info(self, model_id: str) -> ModelInfo:
        """What is known of a model without loading it. Raises FailedPrecondition where its files do not say it."""
        slot = self.slot(model_id)
        if slot.info is None:
            slot.info = await self._loader.info(slot.registered)
        return slot.info

    @asynccontextmanager
    async def use(self, model_id: str) -> AsyncIterator[LoadedModel]:
        """The model, which stays loaded as long as the context lasts; waits for it where it is not.

        Raises NotFound for an unregistered one, Unavailable where it is not loaded in time, and what loading raises.
        """
        slot = self.slot(model_id)
        model = slot.enter() if slot.open else await self._wait_in_time(slot)
        try:
            yield model
        finally:
            self._leave(slot)

    @asynccontextmanager
    async def hold(self, model_id: str) -> AsyncIterator[LoadedModel]:
        """The model, if it serves now. Raises FailedPrecondition where it does not: what asks is not worth a swap."""
        slot = self.slot(model_id)
        if not slot.open:
            raise FailedPrecondition(
                f"model {model_id!r} is not loaded, and this would load none; LoadModel does, and so does any turn"
            )
        async with self.use(model_id) as model:
            yield model

    async def load(self, model_id: str) -> AsyncGenerator[Progress]:
        """Load the model; yield the load's latest progress until it is done. Raises what loading raises."""
        slot = self.slot(model_id)
        if slot.open:
            return
        loading = asyncio.create_task(self._load_and_leave(slot))
        try:
            async with aclosing(slot.follow(loading)) as steps:
                async for step in steps:
                    yield step
            await loading
        finally:
            loading.cancel()
            await asyncio.wait([loading])

    async def unload(self, model_id: str) -> int:
        """Wait for the model's running requests, and unload it; bytes freed. Cancelled, it leaves the model loaded."""
        return await self._unload_if(self.slot(model_id), "request", lambda: True)

    # Waiting.

    async def _load_and_leave(self, slot: ModelSlot) -> LoadedModel:
        model = slot.enter() if slot.open else await self._wait(slot)
        self._leave(slot)
        return model

    async def _wait_in_time(self, slot: ModelSlot) -> LoadedModel:
        try:
            async with asyncio.timeout(self._swap_wait):
                return await self._wait(slot)
        except TimeoutError:
            if slot.open:  # It came at the last moment.
                return slot.enter()
            slot.wanted = True  # The client will retry.
            raise Unavailable(
                f"model {slot.model_id!r} is not loaded yet ({self._waits_for(slot)}); try again",
                retry_after=_RETRY_SECONDS,
            ) from None

    async def _wait(self, slot: ModelSlot) -> LoadedModel:
        """Wait until the model is loaded and entered."""
        waiter: asyncio.Future[LoadedModel] = asyncio.get_running_loop().create_future()
        slot.waiters.append(waiter)
        self._want(slot)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._leave(slot)
            with suppress(ValueError):
                slot.waiters.remove(waiter)
            if not slot.waiters:
                slot.wanted = False
                self._notify()
            raise

    def _leave(self, slot: ModelSlot) -> None:
        slot.leave()
        self._notify()

    def _notify(self) -> None:
        """Have all tasks that wait for a change look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _waits_for(self, slot: ModelSlot) -> str:
        """What a model that is not loaded waits for, in words."""
        if slot.progress.stage != WAIT:
            return f"{slot.progress.stage}, {slot.progress.share:.0%}"
        draining = [each for each in self.slots.values() if each.state == State.MODEL_STATE_DRAINING]
        if draining:
            # Not how many: the client may have nothing to do with those who use it.
            return f"{', '.join(repr(each.model_id) for each in draining)} must end its requests first"
        before = self._queue.index(slot) if slot in self._queue else 0
        return f"{before} other models are loaded first" if before else "others may stay loaded for a while"

    # Coming.

    def _want(self, slot: ModelSlot) -> None:
        """Open and queue the model, unless that is so already. After `stop` all waiters are refused."""
        if self._stopped:
            slot.refuse(_shutting_down())
            return
        slot.wanted = True
        if slot.state in (State.MODEL_STATE_REGISTERED, State.MODEL_STATE_FAILED):
            slot.start_loading()
            self._spawn(self._open(slot))

    async def _open(self, slot: ModelSlot) -> None:
        try:
            slot.opened = await self._loader.open(slot.registered, slot.report)
        except Exception as error:  # noqa: BLE001 - the rim of a load: its waiters get the error
            self._fail(slot, error)
            return
        slot.info = slot.opened.info
        slot.report(WAIT, 0.0)
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
            finally:
                self._queue.remove(slot)

    async def _swap_in(self, slot: ModelSlot) -> None:
        while slot.wanted and (seconds := self._residency_left(self._victims(slot))) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
        async with self._moving:
            victims = self._victims(slot)
            if not slot.wanted or not await self._unload(victims, "swap", lambda: slot.wanted):
                slot.call_off()
                return
            try:
                await self._load(slot)
            except Exception:
                if len(self._queue) == 1:  # What served before serves again, unless others wait for its place.
                    for victim in victims:
                        self._want(victim)
                raise

    def _victims(self, slot: ModelSlot) -> list[ModelSlot]:
        """The models that must go for this one. Raises FailedPrecondition."""
        assert slot.opened is not None
        going = make_room(slot.model_id, slot.opened.needs, self._residents(), self._loader.limits)
        return [self.slots[name] for name in going]

    def _residents(self) -> list[Resident]:
        return [slot.resident() for slot in self.slots.values() if slot.loaded is not None]

    def _residency_left(self, slots: Sequence[ModelSlot]) -> float:
        """Seconds until all of these have been loaded for the minimum of time."""
        now = time.monotonic()
        return max((slot.loaded_at + self._min_residency - now for slot in slots), default=0.0)

    async def _load(self, slot: ModelSlot) -> None:
        opened, slot.opened = slot.opened, None
        assert opened is not None
        began = time.monotonic()
        model = await self._loader.load(opened, self._residents(), slot.report, lambda: self._others_decode(slot))
        model.engine.asked = lambda: self._engine.asked
        self._engine.attach(model.engine.step)
        self._listener.arrived(model, time.monotonic() - began)
        slot.serve(model)

    def _others_decode(self, slot: ModelSlot) -> bool:
        others = (each.loaded for each in self.slots.values() if each is not slot)
        return any(model.engine.running for model in others if model is not None)

    def _fail(self, slot: ModelSlot, error: Exception) -> None:
        known = isinstance(error, AgentmemError)
        shown = error if isinstance(error, AgentmemError) else Internal(type(error).__name__)
        log.warning("model %s cannot be loaded: %s", slot.model_id, shown, exc_info=None if known else error)
        # Frames of the traceback hold on to the weights.
        for each in (error, error.__cause__, error.__context__):
            if each is not None:
                each.__traceback__ = None
        self._listener.failed(slot.model_id)
        slot.fail(shown)

    # Going.

    async def _unload_if(self, slot: ModelSlot, reason: str, wanted: Callable[[], bool]) -> int:
        """Unload a model when its turn has come; bytes freed. 0 if it does not serve, or is not to go any more."""
        async with self._moving:
            if slot.loaded is None or not slot.open or not wanted():
                return 0
            freed = slot.loaded.weight_bytes + slot.loaded.arenas.nbytes
            await self._unload([slot], reason, lambda: True)
            return freed

    async def _unload(self, slots: Sequence[ModelSlot], reason: str, wanted: Callable[[], bool]) -> bool:
        """Drain these models, wait for their users and release them; False if that was called off meanwhile."""
        for slot in slots:
            slot.drain()
        try:
            while any(slot.users for slot in slots):
                if not wanted():
                    return False
                await self._changed.wait()
            for slot in slots:
                await run_shielded(self._release(slot, reason))
            return True
        finally:
            for slot in slots:
                if slot.loaded is not None:
                    slot.reopen()

    async def _release(self, slot: ModelSlot, reason: str) -> None:
        model = slot.loaded
        assert model is not None
        try:
            await self._listener.leaving(model, _WRITE_SECONDS)
        finally:  # Whatever happens, it is gone then, and its waiters are not forgotten.
            self._engine.detach(model.engine.step)
            slot.loaded = None
            with suppress(Unavailable):  # The engine is dead; its memory goes with the process.
                await self._engine.call(model.release)
            slot.unloaded()
            if slot.wanted:
                self._want(slot)
            self._notify()
        self._listener.left(model, reason)
        logs.event(log, "model unloaded", model=slot.model_id, reason=reason)

    async def _unload_idle(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for slot in self.slots.values():
                if slot.idle_too_long:
                    await self._unload_if(slot, "ttl", partial(getattr, slot, "idle_too_long"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _shutting_down() -> Unavailable:
    return Unavailable("the worker is shutting down")


def _sweep() -> None:
    """Give back what a failed load has left in memory. Engine thread."""
    gc.collect()
    mx.clear_cache()
