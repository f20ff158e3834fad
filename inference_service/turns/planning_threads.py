"""Where inputs are rendered and tokenized: off the event loop, and large ones one at a time."""

import asyncio
import contextvars
import ctypes
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from inference_service.domain import AppendInput, MessagesInput, TextInput, TurnInput

_T = TypeVar("_T")

LARGE = 1 << 20
"""Characters of a large input. Several times that are in memory while it is planned."""


class PlanningThreads:
    """Runs the work on inputs. Event loop only.

    A caller that leaves does not end the work on its input, so large inputs have one thread, for which they wait.
    """

    def __init__(self) -> None:
        self._large = ThreadPoolExecutor(1, "large-input")

    async def run(self, turn_input: TurnInput, work: Callable[[], _T]) -> _T:
        """What `work` returns; the context variables of the caller are its own."""
        if characters(turn_input) < LARGE:
            return await asyncio.to_thread(work)
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._large, _and_release, context, work)


def characters(turn_input: TurnInput) -> int:
    """How much text an input brings."""
    match turn_input:
        case AppendInput(content):
            return characters(content)
        case TextInput(text):
            return len(text)
        case MessagesInput(messages, tools, arguments):
            return _characters([messages, tools, arguments])
    return 0


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_characters(key) + _characters(item) for key, item in value.items())
    return sum(map(_characters, value)) if isinstance(value, list | tuple) else 0


def _and_release(context: contextvars.Context, work: Callable[[], _T]) -> _T:
    """The work, and then its memory back to the system: glibc keeps what other threads' allocations stand behind."""
    try:
        return context.run(work)
    finally:
        if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
            libc.malloc_trim(0)
