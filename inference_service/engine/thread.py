"""The one thread that owns MLX. The event loop hands it functions and awaits their results."""

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from agentmem.errors import Unavailable
from inference_service.engine.pausing import pause_for

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Task(NamedTuple):
    """A function for another thread, and the future of its result."""

    function: Callable[[], Any]
    future: Future[Any]

    def run(self) -> None:
        """Run it on the other thread, unless its future was cancelled; that gets what it returns or raises."""
        if not self.future.set_running_or_notify_cancel():
            return
        with suppress(InvalidStateError):  # The thread is being stopped.
            try:
                self.future.set_result(self.function())
            except Exception as error:  # noqa: BLE001 - the rim of the thread: the caller gets it
                self.future.set_exception(error)


class EngineThread:
    """Runs functions in the order of `submit`, and the attached steps in turn between them, on one thread.

    An Exception of a function is its caller's. Anything worse ends the thread: then `alive` is False, `died` is set,
    and all that waits, and all that comes later, fails with Unavailable.
    """

    def __init__(self) -> None:
        self._steps: tuple[Callable[[], bool], ...] = ()
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._pending: set[Future[Any]] = set()
        self._messages: deque[Callable[[], object]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting = False
        self._paused = False
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self.died = asyncio.Event()

    def start(self) -> None:
        """Start the thread. Call it on the event loop that will use it."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def alive(self) -> bool:
        """The thread runs."""
        return self._thread.is_alive() and not self.died.is_set()

    @property
    def idle(self) -> bool:
        """What is submitted now runs at once, as far as one can know. Any thread."""
        return self.alive and self._waiting and self._tasks.empty()

    @property
    def asked(self) -> bool:
        """Functions wait to be run. Any thread."""
        return not self._tasks.empty()

    def submit(self, function: Callable[[], _T]) -> "Future[_T]":
        """Queue a function. Its future can be cancelled only until it runs; await it by `asyncio.wrap_future`.

        From the event loop only. Raises Unavailable when the thread is dead.
        """
        task = Task(function, Future())
        self._queue(task, task.future)
        return task.future

    def begin(self, start: Callable[[], object], future: "Future[Any]") -> None:
        """Queue a function that starts something which steps will end, and then resolve `future`. As `submit`."""
        task = Task(start, Future())

        def forward(started: "Future[Any]") -> None:
            if not started.cancelled() and (error := started.exception()) and not future.done():
                future.set_exception(error)

        task.future.add_done_callback(forward)
        self._queue(task, future)

    def attach(self, step: Callable[[], bool]) -> None:
        """Call `step` between functions, after those attached before, as long as it says that there is more to do."""
        self._steps = (*self._steps, step)

    def detach(self, step: Callable[[], bool]) -> None:
        """Call it no more. It may be in a call; a function that is submitted now runs after that."""
        self._steps = tuple(each for each in self._steps if each != step)

    async def call(self, function: Callable[[], _T]) -> _T:
        """Run a function on the thread and wait for it. Cancelling the wait does not stop the function."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(function)))

    def tell(self, function: Callable[..., object], *of: Any) -> None:
        """Have the event loop call a function, behind those before it: when a step ends, or at `flush`.

        On the engine thread, which each message that wakes the loop costs the interpreter: all tokens of a pass go
        together. What `wait` waits for comes behind all that was told before.
        """
        self._messages.append(partial(function, *of))

    def flush(self) -> None:
        """Have the event loop hear what it was told. Engine thread."""
        if self._messages and self._loop is not None:
            self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        while self._messages:
            try:
                self._messages.popleft()()
            except Exception:  # the next one is another turn's
                log.exception("what the engine told was not taken")

    async def wait(self, future: "Future[_T]") -> None:
        """Wait until a function has run, failed or been cancelled; `future` says which."""
        wrapped = asyncio.wrap_future(future)
        await asyncio.wait([wrapped])
        self._hear()
        if not wrapped.cancelled():
            wrapped.exception()

    async def stop(self, seconds: float) -> None:
        """Let what is queued finish, at most so long, and end the thread. May be called before `start`."""
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
        """In a pause of a function: run what waits, and a step of each model's turns."""
        if self._paused:  # A function that runs meanwhile does not pause for others.
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
        """Run the functions that wait, of an `idle` thread the next one at least; return whether the thread goes on."""
        for _ in range(max(int(idle), self._tasks.qsize())):
            self._waiting = idle
            task = self._tasks.get()
            self._waiting = False
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
                self.flush()
        except BaseException:
            log.critical("the engine thread died", exc_info=True)
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._bury)

    def _bury(self) -> None:
        self.died.set()
        for future in list(self._pending):
            if not future.done():
                future.set_exception(Unavailable("the engine thread has died", retry_after=5))
