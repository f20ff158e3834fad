"""Blocking calls from coroutines: an event loop on a thread, and wrappers that keep the types."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from agentmem.errors import Cancelled

_CUT_OFF: Final = "the client was closed"

_A = TypeVar("_A")
_P = ParamSpec("_P")
_T = TypeVar("_T")
_B = TypeVar("_B", bound="Blocking[Any]")


class Closed(RuntimeError):
    def __init__(self) -> None:
        super().__init__("the client is closed")


class LoopThread:
    """An event loop on a daemon thread, for any number of threads."""

    def __init__(self) -> None:
        self._closed = False
        self._lock = threading.RLock()
        """Held while a coroutine is handed over: it runs before `close` stops the loop, or not at all. Reentrant,
        because the garbage collector may finish an iterator meanwhile.
        """
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="agentmem-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Return a coroutine's result; Ctrl-C and the like cancel it.

        Raises Cancelled if `close` ends it; Closed after `close`; RuntimeError on the loop's own thread.
        """
        if self._is_here() and not self._closed:
            coroutine.close()
            raise RuntimeError("this blocks the client's own event loop")
        try:
            return self._begin(coroutine).result()
        except concurrent.futures.CancelledError:
            raise Cancelled(_CUT_OFF) from None
        except BaseException:  # maybe before the future is here
            with suppress(RuntimeError):  # the loop may have ended
                self._loop.call_soon_threadsafe(self._cancel, coroutine)
            raise

    def finish(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a cleanup; on the loop's own thread, where the garbage collector may call this, do not wait for it."""
        with suppress(Closed, Cancelled):
            if self._is_here():
                self._begin(coroutine)
            else:
                self.run(coroutine)

    def close(self) -> None:
        """Cancel what runs, and end the thread."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def _begin(self, coroutine: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        with self._lock:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise Closed

    def _cancel(self, coroutine: Coroutine[Any, Any, object]) -> None:
        tasks = [task for task in asyncio.all_tasks() if task.get_coro() is coroutine]
        for task in tasks:
            task.cancel()
        if not tasks:  # it has not begun, or has ended
            coroutine.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()


class Blocking(Generic[_A]):
    def __init__(self, wrapped: _A, loop: LoopThread) -> None:
        self._wrapped = wrapped
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._wrapped).replace("Async", "", 1)


def blocking(method: Callable[Concatenate[_A, _P], Coroutine[Any, Any, _T]]) -> Callable[Concatenate[Any, _P], _T]:
    @wraps(method)
    def call(self: Blocking[_A], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._loop.run(method(self._wrapped, *args, **kwargs))

    return call


def iterating(method: Callable[Concatenate[_A, _P], AsyncIterator[_T]]) -> Callable[Concatenate[Any, _P], Iterator[_T]]:
    @wraps(method)
    def call(self: Blocking[_A], /, *args: _P.args, **kwargs: _P.kwargs) -> Iterator[_T]:
        return _iterate(method(self._wrapped, *args, **kwargs), self._loop)

    return call


def wrapping(
    method: Callable[Concatenate[_A, _P], Any], kind: Callable[[Any, LoopThread], _B]
) -> Callable[Concatenate[Any, _P], _B]:
    """Make a method that wraps its result, awaited or immediate, in a `kind` of Blocking."""

    @wraps(method)
    def call(self: Blocking[_A], /, *args: _P.args, **kwargs: _P.kwargs) -> _B:
        made = method(self._wrapped, *args, **kwargs)
        return kind(self._loop.run(made) if asyncio.iscoroutine(made) else made, self._loop)

    return call


def _iterate(items: AsyncIterator[_T], loop: LoopThread) -> Iterator[_T]:
    running: asyncio.Task[Any] | None = None

    async def following() -> tuple[_T] | None:
        nonlocal running
        running = asyncio.current_task()
        try:
            return (await anext(items),)
        except StopAsyncIteration:
            return None

    async def closing() -> None:
        if running is not None and not running.done():
            running.cancel()  # Ctrl-C may have come while it was handed over
            await asyncio.wait({running})
        if (close := getattr(items, "aclose", None)) is not None:
            await close()

    try:
        while (item := loop.run(following())) is not None:
            yield item[0]
    except Closed:
        if running is None:  # never begun
            raise
        raise Cancelled(_CUT_OFF) from None
    finally:
        loop.finish(closing())
