import asyncio
import traceback
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def run_shielded(work: Coroutine[Any, Any, _T]) -> _T:
    """Finish `work` even if the caller is cancelled, and then cancel it, dropping errors of `work`. Event loop."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.cancelled():
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()
        raise


def release_frames(error: BaseException) -> None:
    """Clear the frames of `error`, so that their locals are freed; its traceback stays printable. Any thread.

    An error and its frames are a cycle, which would keep arrays until the next garbage collection.
    """
    known: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in known:
            known.add(id(each))
            traceback.clear_frames(each.__traceback__)
            left += (each.__cause__, each.__context__)
