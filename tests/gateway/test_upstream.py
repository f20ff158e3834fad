"""A stream's messages before scripted calls: a reader always gets an end, whatever ends the call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from agentmem import errors
from gateway import upstream


class CancelledCall:
    """A call that is cancelled at this end, as by a closed channel, after some messages."""

    def __init__(self, messages: int) -> None:
        self._messages = messages
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in range(self._messages):
            yield number
        raise asyncio.CancelledError

    def cancel(self) -> bool:
        self.cancelled = True
        return True


class EndlessCall(CancelledCall):
    async def __aiter__(self) -> AsyncIterator[int]:
        yield 0
        await asyncio.Event().wait()


@pytest.mark.parametrize("messages", [0, 1, 4])
async def test_a_slow_reader_learns_that_the_call_was_cancelled(messages: int) -> None:
    call, seen = CancelledCall(messages), []

    async def read() -> None:
        async with asyncio.timeout(20), aclosing(upstream.messages(call)) as stream:
            async for message in stream:
                await asyncio.sleep(0.01)
                seen.append(message)

    with pytest.raises(errors.Unavailable):
        await read()
    assert seen == list(range(messages))
    assert call.cancelled


async def test_a_reader_that_is_cancelled_cancels_the_call() -> None:
    call, began = EndlessCall(0), asyncio.Event()

    async def read() -> None:
        async with aclosing(upstream.messages(call)) as stream:
            async for _ in stream:
                began.set()

    reading = asyncio.create_task(read())
    await began.wait()
    reading.cancel()
    await asyncio.wait({reading})
    assert reading.cancelled()
    assert call.cancelled


async def test_a_reader_that_times_out_is_told_so() -> None:
    async def read() -> None:
        async with asyncio.timeout(0.01), aclosing(upstream.messages(EndlessCall(0))) as stream:
            async for _ in stream:
                pass

    with pytest.raises(TimeoutError):
        await read()
