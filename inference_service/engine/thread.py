"""The one thread that owns MLX. The event loop submits functions to it and awaits their results."""

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
from inference_service.engine.pausing import pause_for

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_TOGETHER_SECONDS: Final = 0.02
"""How long messages that can wait are kept to go together: one by one, tokens of 8 agents took 0.17 ms of the gateway's
and 0.47 of the worker's processor time (H200), so 0.05 and 0.40.
"""


class Task(NamedTuple):
    function: Callable[[], Any]
    future: Future[Any]

    def run(self) -> None:
        """Run the function, unless its future was cancelled."""
        if not self.future.set_running_or_notify_cancel():
            return
        with suppress(InvalidStateError):  # The thread is being stopped.
            try:
                self.future.set_result(self.function())
            except Exception as error:  # noqa: BLE001 - the rim of the thread: the caller gets it
                self.future.set_exception(error)


class EngineThread:
    """Runs functions in the order of `submit`, and the attached steps in turn between them, on one thread.

    An Exception goes to the caller. Anything else ends the thread: `alive` is False, `died` is set, and all calls fail
    with Unavailable.
    """

    def __init__(self) -> None:
        self._steps: tuple[Callable[[], bool], ...] = ()
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._pending: set[Future[Any]] = set()
        self._messages: deque[Callable[[], object]] = deque()
        self._flushed = -math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._paused = False
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self.died = asyncio.Event()

    def start(self) -> None:
        """On the event loop that will use it."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self.died.is_set()

    @property
    def asked(self) -> bool:
        """True if functions are pending. Any thread."""
        return not self._tasks.empty()

    def submit(self, function: Callable[[], _T]) -> "Future[_T]":
        """Queue a function; its future can be cancelled until it runs. Event loop only. Raises Unavailable."""
        task = Task(function, Future())
        self._queue(task, task.future)
        return task.future

    def begin(self, start: Callable[[], object], future: "Future[Any]") -> None:
        """As `submit`, for a function that starts work which later steps finish, resolving `future`."""
        task = Task(start, Future())

        def forward(started: "Future[Any]") -> None:
            if not started.cancelled() and (error := started.exception()) and not future.done():
                future.set_exception(error)

        task.future.add_done_callback(forward)
        self._queue(task, future)

    def attach(self, step: Callable[[], bool]) -> None:
        """Call `step` between functions, in order of attachment. The thread does not idle while a step returns True."""
        self._steps = (*self._steps, step)

    def detach(self, step: Callable[[], bool]) -> None:
        """It may be running; a function that is submitted now runs after that."""
        self._steps = tuple(each for each in self._steps if each != step)

    async def call(self, function: Callable[[], _T]) -> _T:
        """Run a function and wait for it. Cancelling the wait does not stop it."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(function)))

    def tell(self, function: Callable[..., object], *of: Any) -> None:
        """Post a call that the event loop makes in order, after `flush`, or when nothing is left to do. Engine thread.

        `wait` delivers earlier messages before it returns.
        """
        self._messages.append(partial(function, *of))

    def flush(self, *, soon: bool = True) -> None:
        """Deliver messages to the event loop; if not `soon`, perhaps with later ones. Engine thread."""
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
        """Wait until a function has run, failed or been cancelled; `future` says which."""
        wrapped = asyncio.wrap_future(future)
        await asyncio.wait([wrapped])
        self._hear()
        if not wrapped.cancelled():
            wrapped.exception()

    async def stop(self, seconds: float) -> None:
        """Let queued functions finish for at most so long, and end the thread. May be called before `start`."""
        if self.alive:
            self._tasks.put(None)
            await asyncio.to_thread(self._thread.join, seconds)
        for future in list(self._pending):
            if not future.done():
                future.set_exception(Unavailable("the worker is shutting down"))

    def _queue(self, task: Task, future: "Future[Any]") -> None:
        if not self.alive:
            raise Unavailable("the engine thread has died; the worker must be restarted", retry_after=5)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        self._tasks.put(task)

    def _between(self) -> None:
        """Run pending functions, and a step of each model, while a function pauses."""
        if self._paused:  # A function that runs in a pause does not pause itself.
            return
        self._paused = True
        try:
            if not self._run_waiting():
                self._tasks.put(None)
                raise Unavailable("the worker is shutting down")
            for step in self._steps:
                step()
            self.flush()
        finally:
            self._paused = False

    def _run_waiting(self, *, idle: bool = False) -> bool:
        """Run the pending functions, if `idle` at least the next one; return whether the thread goes on."""
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
                busy = any([step() for step in self._steps])
                self.flush(soon=not busy or self.asked)
        except BaseException:
            log.critical("the engine thread died", exc_info=True)
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._bury)

    def _bury(self) -> None:
        self.died.set()
        for future in list(self._pending):
            if not future.done():
                future.set_exception(Unavailable("the engine thread has died", retry_after=5))
