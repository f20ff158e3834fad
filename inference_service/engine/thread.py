"""The one thread that owns MLX. The event loop submits functions and awaits their results."""

import asyncio
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from agentmem.errors import Unavailable
from agentmem.process.logs import event
from inference_service.engine import lost_device
from inference_service.engine.device import on_metal
from inference_service.engine.pausing import pause_for

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_RETRY_SECONDS, _RETRY_LOST_SECONDS = 5.0, 2.0
_DIED: Final = "the engine thread has died, and the worker is started again; try again"
_LOST: Final = (
    "the GPU failed ({}), and the worker is started again; this request left nothing, and what was committed is kept: "
    "try again"
)
_TOGETHER_SECONDS: Final = 0.02
"""One by one, tokens of 8 agents took 0.47 ms of the worker's processor time (H200), so 0.40."""


class Task(NamedTuple):
    function: Callable[[], Any]
    future: Future[Any]

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        with suppress(InvalidStateError):  # The thread is being stopped.
            try:
                self.future.set_result(self.function())
            except Exception as error:  # noqa: BLE001 - the rim of the thread: the caller gets it
                lost_device.end_if_lost(error)
                self.future.set_exception(error)


class EngineThread:
    """Runs functions in order, and attached steps between them. An error that is no Exception ends the thread: calls
    then fail with Unavailable.
    """

    def __init__(self) -> None:
        self._steps: tuple[Callable[[], bool], ...] = ()
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._pending: set[Future[Any]] = set()
        self._messages: deque[Callable[[], object]] = deque()
        self._flushed = -math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._paused = False
        self._death = ""
        self.lost = ""
        """The lost device's words."""
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self.died = asyncio.Event()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._death

    @property
    def asked(self) -> bool:
        """True if functions are pending. Any thread."""
        return not self._tasks.empty()

    def submit(self, function: Callable[[], _T]) -> "Future[_T]":
        """Event loop only. Raises Unavailable."""
        task = Task(function, Future())
        self._queue(task, task.future)
        return task.future

    def begin(self, start: Callable[[], object], future: "Future[Any]") -> None:
        """For work that later steps finish, resolving `future`."""
        task = Task(start, Future())

        def forward(started: "Future[Any]") -> None:
            if not started.cancelled() and (error := started.exception()) and not future.done():
                future.set_exception(error)

        task.future.add_done_callback(forward)
        self._queue(task, future)

    def attach(self, step: Callable[[], bool]) -> None:
        """The thread does not idle while a step returns True."""
        self._steps = (*self._steps, step)

    def detach(self, step: Callable[[], bool]) -> None:
        self._steps = tuple(each for each in self._steps if each != step)

    def check(self) -> None:
        """Raises Unavailable once the thread has ended."""
        if not self.alive:
            raise self._ended()

    async def confirm(self) -> None:
        """Raises Unavailable if what was computed may be wrong."""
        self.check()
        if on_metal():
            await self.call(lost_device.ask)

    async def call(self, function: Callable[[], _T]) -> _T:
        return await asyncio.shield(asyncio.wrap_future(self.submit(function)))

    def tell(self, function: Callable[..., object], *of: Any) -> None:
        """Have the event loop call, in order, after `flush`. Engine thread."""
        self._messages.append(partial(function, *of))

    def flush(self, *, soon: bool = True) -> None:
        if not self._messages or self._loop is None:
            return
        now = time.monotonic()
        if soon or now - self._flushed >= _TOGETHER_SECONDS:
            self._flushed = now
            self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        while self._messages:
            try:
                self._messages.popleft()()
            except Exception:  # the next message is another turn's
                log.exception("what the engine told was not taken")

    async def wait(self, future: "Future[_T]") -> None:
        wrapped = asyncio.wrap_future(future)
        await asyncio.wait([wrapped])
        self._hear()
        if not wrapped.cancelled():
            wrapped.exception()

    async def stop(self, seconds: float) -> None:
        """Let queued functions finish for so long, and end the thread."""
        if self.alive:
            self._tasks.put(None)
            await asyncio.to_thread(self._thread.join, seconds)
        for future in list(self._pending):
            if not future.done():
                future.set_exception(Unavailable("the worker is shutting down"))

    def _queue(self, task: Task, future: "Future[Any]") -> None:
        self.check()
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        self._tasks.put(task)

    def _between(self) -> bool:
        if self._paused:
            return False
        self._paused = True
        try:
            if not self._run_waiting():
                self._tasks.put(None)
                raise Unavailable("the worker is shutting down")
            return self._step()
        finally:
            self._paused = False

    def _step(self) -> bool:
        busy = any([step() for step in self._steps])
        self.flush(soon=not busy or self.asked)
        return busy

    def _run_waiting(self, *, idle: bool = False) -> bool:
        """Return whether the thread goes on."""
        for _ in range(max(int(idle), self._tasks.qsize())):
            task = self._tasks.get()
            if task is None:
                return False
            task.run()
            del task
        return True

    def _main(self) -> None:
        pause_for(self._between)
        try:
            busy = False
            while self._run_waiting(idle=not busy):
                busy = self._step()
        except BaseException as error:
            if lost := lost_device.loss(error):
                event(log, "the GPU failed", logging.CRITICAL, error=lost)
            else:
                log.critical("the engine thread died", exc_info=True)
            self.lost, self._death = lost, _LOST.format(lost) if lost else _DIED
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._bury)

    def _bury(self) -> None:
        self.died.set()
        for future in list(self._pending):
            if not future.done():
                future.set_exception(self._ended())

    def _ended(self) -> Unavailable:
        return Unavailable(self._death or _DIED, _RETRY_LOST_SECONDS if self.lost else _RETRY_SECONDS)
