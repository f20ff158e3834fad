"""Work that is not left half done, and failures that hold on to nothing."""

import asyncio
import traceback
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def to_its_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Do all of `work` even if the caller is cancelled meanwhile; then it is cancelled afterwards.

    What `work` raises then is told to nobody. Event loop.
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
    """Let go of what the functions that `error` has passed were working on; its lines are still told in a log.

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
