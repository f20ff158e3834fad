"""Work that is not left half done, and failures that hold on to nothing."""

import asyncio
import traceback
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def run_shielded(work: Coroutine[Any, Any, _T]) -> _T:
    """Do all of `work` even if the caller is cancelled meanwhile; then it is cancelled afterwards.

    What `work` raises then is dropped. Event loop.
    """
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
    """Clear the frames that `error` has passed, so that their locals are freed; its traceback stays printable.

    An error is part of a cycle with their frames, so their arrays would stay in memory until Python looks for cycles,
    which may be long after. Any thread.
    """
    known: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in known:
            known.add(id(each))
            traceback.clear_frames(each.__traceback__)
            left += (each.__cause__, each.__context__)
