"""Models come and go: the queue of those that are wanted, and how one makes room for another.

wanted → opened (fetched, checked, named) → its turn → room: others drain, are written, leave → loaded → serves
"""

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import mlx.core as mx

from agentmem import layout, logs
from agentmem.errors import AgentmemError, Internal, Unavailable
from agentmem.shielding import to_its_end
from inference_service.engine.thread import EngineThread
from inference_service.models.loader import Loader
from inference_service.models.loading import LoadedModel
from inference_service.models.opening import Outline
from inference_service.models.residency import Resident, make_room
from inference_service.models.seats import READY, WAIT, Seat, State

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""How often idle models are looked at."""
_WRITE_SECONDS = 60.0
"""How long a model that leaves may take to have its agents' KV written; the rest is computed again some day."""


class Surroundings(Protocol):
    """Who must know when a model comes or goes. Event loop."""

    def arrived(self, model: LoadedModel, seconds: float) -> None:
        """The model serves from now on; it took so long to load."""

    async def leaving(self, model: LoadedModel, seconds: float) -> None:
        """Nobody uses the model any more. Write what there is of it, within so many seconds, and forget it."""

    def left(self, model: LoadedModel, reason: str) -> None:
        """The model is gone: "swap", "request" or "ttl"."""

    def failed(self, model_id: str) -> None:
        """The model could not be loaded."""


class Swapper:
    """Loads what is wanted, one after the other, and unloads what must go. Event loop only."""

    def __init__(self, engine: EngineThread, loader: Loader, surroundings: Surroundings, min_residency: float) -> None:
        self._engine = engine
        self._loader = loader
        self._surroundings = surroundings
        self._min_residency = min_residency
        self._seats: list[Seat] = []
        self._queue: list[Seat] = []
        self._changed = asyncio.Event()
        self._moving = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False

    def start(self, seats: Iterable[Seat]) -> None:
        """Begin to look after these."""
        self._seats = list(seats)
        self._spawn(self._run())
        self._spawn(self._watch_idle())

    async def stop(self) -> None:
        """Begin nothing any more; a model that is leaving gets a moment to be gone. What is loaded stays."""
        self._stopped = True
        self._loader.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=layout.REFUSED_SECONDS)

    def changed(self) -> None:
        """Somebody has left, or wants something else: what waits looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def want(self, seat: Seat) -> None:
        """Somebody wants the model: open it and queue it, unless that is so already. After `stop` all are refused."""
        if self._stopped:
            seat.refuse(Unavailable("the worker is shutting down"))
            return
        seat.wanted = True
        if seat.state in (State.MODEL_STATE_REGISTERED, State.MODEL_STATE_FAILED):
            seat.state, seat.error = State.MODEL_STATE_LOADING, ""
            seat.tell(WAIT, 0.0)
            self._spawn(self._open(seat))

    async def outline(self, seat: Seat) -> Outline:
        """What is known of the model without its weights. Raises FailedPrecondition."""
        return await self._loader.outline(seat.registered)

    async def unload(self, seat: Seat, reason: str = "request", still: Callable[[], bool] = lambda: True) -> int:
        """Wait for the model's requests and unload it; bytes freed. Cancelled, it stays.

        0 if it does not serve, or if it is not `still` to go when its turn has come.
        """
        async with self._moving:
            if not seat.open or seat.loaded is None or not still():
                return 0
            freed = seat.loaded.weight_bytes + seat.loaded.arenas.nbytes
            await self._vacate([seat], reason, lambda: True)
            return freed

    def doing(self, seat: Seat) -> str:
        """What the model waits for, in words."""
        if seat.progress.stage != WAIT:
            return f"{seat.progress.stage}, {seat.progress.share:.0%}"
        draining = [each for each in self._seats if each.state == State.MODEL_STATE_DRAINING]
        if draining:
            # Not how many: whoever asks may have nothing to do with those who use it.
            return f"{', '.join(repr(each.model_id) for each in draining)} must end its requests first"
        before = self._queue.index(seat) if seat in self._queue else 0
        return f"{before} other models are loaded first" if before else "others may stay loaded for a while"

    async def _open(self, seat: Seat) -> None:
        try:
            seat.opening = await self._loader.open(seat.registered, seat.tell)
        except Exception as error:  # noqa: BLE001 - the rim of a load: those who wait get it
            self._fail(seat, error)
            return
        seat.outline = seat.opening.model.outline
        seat.tell(WAIT, 0.0)
        self._queue.append(seat)
        self.changed()

    async def _run(self) -> None:
        while True:
            while not self._queue:
                await self._changed.wait()
            seat = self._queue[0]
            try:
                await self._take_turn(seat)
            except Exception as error:  # noqa: BLE001 - the rim of a load: those who wait get it
                self._fail(seat, error)
                with suppress(AgentmemError):
                    await self._engine.call(_sweep)
            finally:
                self._queue.remove(seat)

    async def _take_turn(self, seat: Seat) -> None:
        while seat.wanted and (seconds := self._protected_for(self._victims(seat))) > 0:
            await self._change_within(seconds)
        async with self._moving:
            going = self._victims(seat)
            if not seat.wanted or not await self._vacate(going, "swap", lambda: seat.wanted):
                seat.state, seat.opening = State.MODEL_STATE_REGISTERED, None
                return
            try:
                await self._load(seat)
            except Exception:
                if len(self._queue) == 1:  # What served before serves again, unless others wait for its place.
                    for each in going:
                        self.want(each)
                raise

    def _victims(self, seat: Seat) -> list[Seat]:
        """Who must go for it. Raises FailedPrecondition."""
        assert seat.opening is not None
        going = make_room(seat.model_id, seat.opening.needs, self._residents(), self._loader.limits)
        return [each for each in self._seats if each.model_id in going]

    def _residents(self) -> list[Resident]:
        return [seat.resident() for seat in self._seats if seat.loaded is not None]

    def _protected_for(self, seats: Sequence[Seat]) -> float:
        """Seconds until all of these have been loaded for as long as they may stay at least."""
        now = time.monotonic()
        return max((seat.loaded_at + self._min_residency - now for seat in seats), default=0.0)

    async def _change_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def _vacate(self, seats: Sequence[Seat], reason: str, still_wanted: Callable[[], bool]) -> bool:
        """Let no request begin with these, wait for those that run, and unload them; False if that was called off."""
        for seat in seats:
            seat.state = State.MODEL_STATE_DRAINING
            seat.tell(WAIT, 0.0)
        try:
            while any(seat.users for seat in seats):
                if not still_wanted():
                    return False
                await self._changed.wait()
            for seat in seats:
                await to_its_end(self._unload(seat, reason))
            return True
        finally:
            for seat in seats:
                if seat.loaded is not None:
                    seat.state = State.MODEL_STATE_LOADED
                    seat.admit()
                    seat.tell(READY, 1.0)

    async def _unload(self, seat: Seat, reason: str) -> None:
        model = seat.loaded
        assert model is not None
        try:
            await self._surroundings.leaving(model, _WRITE_SECONDS)
        finally:  # Whatever happens, it is gone then, and who waits for it is not forgotten.
            self._engine.detach(model.engine.tick)
            seat.loaded = None
            with suppress(Unavailable):  # The engine is dead; its memory goes with the process.
                await self._engine.call(model.release)
            seat.state = State.MODEL_STATE_REGISTERED
            if seat.wanted:
                self.want(seat)
            self.changed()
        self._surroundings.left(model, reason)
        logs.event(log, "model unloaded", model=seat.model_id, reason=reason)

    async def _load(self, seat: Seat) -> None:
        opening, seat.opening = seat.opening, None
        assert opening is not None
        began = time.monotonic()
        model = await self._loader.load(opening, self._residents(), seat.tell, lambda: self._others_decode(seat))
        seat.loaded, seat.state = model, State.MODEL_STATE_LOADED
        seat.loaded_at = seat.last_used = time.monotonic()
        model.engine.asked = lambda: self._engine.asked
        self._engine.attach(model.engine.tick)
        self._surroundings.arrived(model, seat.loaded_at - began)
        seat.admit()
        seat.tell(READY, 1.0)

    def _others_decode(self, seat: Seat) -> bool:
        others = [each.loaded for each in self._seats if each is not seat]
        return any(model.engine.running for model in others if model is not None)

    def _fail(self, seat: Seat, error: Exception) -> None:
        known = isinstance(error, AgentmemError)
        told = error if isinstance(error, AgentmemError) else Internal(type(error).__name__)
        log.warning("model %s cannot be loaded: %s", seat.model_id, told, exc_info=None if known else error)
        # Frames of the traceback hold on to the weights.
        for each in (error, error.__cause__, error.__context__):
            if each is not None:
                each.__traceback__ = None
        seat.state, seat.error, seat.opening = State.MODEL_STATE_FAILED, str(told), None
        self._surroundings.failed(seat.model_id)
        seat.refuse(told)

    async def _watch_idle(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for seat in self._seats:
                if _outlived(seat):
                    await self.unload(seat, "ttl", partial(_outlived, seat))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _outlived(seat: Seat) -> bool:
    ttl = seat.registered.ttl
    return ttl is not None and seat.open and not seat.users and time.monotonic() - seat.last_used > ttl


def _sweep() -> None:
    """Give back what a failed load has left in memory. Engine thread."""
    gc.collect()
    mx.clear_cache()
