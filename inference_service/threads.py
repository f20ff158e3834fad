"""Thread pools, one for each kind of work:

requests      1   parsed, checked, hashed
planning      4   prompts rendered, tokenized, hashed
large-input   1   planning of a megabyte and more, which takes several times its size
grammar       1   hostile schemas take time only from each other
files        16   files of KV; also `asyncio.to_thread`
"""

import asyncio
import ctypes
import sys
from collections.abc import Callable
from typing import Final, TypeVar

from agentmem import jsontext
from agentmem.tracing import Threads
from inference_service.domain import AppendInput, MessagesInput, TextInput, TurnInput
from inference_service.storage.transport import READERS_AT_ONCE

_T = TypeVar("_T")

LARGE: Final = 1 << 20
"""Characters."""
FEW_TOKENS: Final = 4096


class WorkerThreads:
    """Work runs in its caller's context (agentmem.tracing), and on when that is cancelled. Close it after the
    engine.
    """

    def __init__(self) -> None:
        self._requests = Threads(1, "requests")
        self._planning = Threads(4, "planning")
        self._large = Threads(1, "large-input")
        self._grammar = Threads(1, "grammar")
        self.files = Threads(2 * READERS_AT_ONCE, "files")

    def install(self) -> None:
        """Make `files` the loop's executor; the loop shuts it down."""
        asyncio.get_running_loop().set_default_executor(self.files)

    def close(self) -> None:
        for pool in (self._requests, self._planning, self._large, self._grammar):
            pool.shutdown(wait=False, cancel_futures=True)

    async def parse(self, work: Callable[[], _T]) -> _T:
        """Finding out a request's size takes as long as serializing it."""
        return await _run(self._requests, work)

    async def plan(self, work: Callable[[], _T], tokens: int | None = None) -> _T:
        """Run in place for so few `tokens` that a thread would take longer."""
        return work() if tokens is not None and tokens < FEW_TOKENS else await _run(self._planning, work)

    async def plan_input(self, turn_input: TurnInput, work: Callable[[], _T]) -> _T:
        """Large inputs share one thread."""
        if characters(turn_input) < LARGE:
            return await _run(self._planning, work)
        return await _run(self._large, lambda: _and_release(work))

    async def compile(self, work: Callable[[], _T]) -> _T:
        return await _run(self._grammar, work)


def characters(turn_input: TurnInput) -> int:
    match turn_input:
        case AppendInput(content):
            return characters(content)
        case TextInput(text):
            return len(text)
        case MessagesInput(messages, tools, arguments):
            return sum(map(len, jsontext.strings((messages, tools, arguments))))
    return 0


async def _run(pool: Threads, work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)


def _and_release(work: Callable[[], _T]) -> _T:
    """glibc keeps freed memory below other threads' allocations."""
    try:
        return work()
    finally:
        if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
            libc.malloc_trim(0)
