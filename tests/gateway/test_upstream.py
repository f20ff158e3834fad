"""Answers of scripted calls: who waits for one always gets an end, whatever ends the call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing
from typing import Any, cast

import pytest

from agentmem import errors
from agentmem.v1 import inference_pb2
from gateway.upstream import ChannelWorker


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


class Channel:
    """Makes one call."""

    def __init__(self, call: Any) -> None:
        self.unary_unary = self.unary_stream = lambda *_: lambda request, timeout: call


def messages(call: Any) -> AsyncGenerator[Any, None]:
    return ChannelWorker(cast(Any, Channel(call))).stream(inference_pb2.GenerateRequest())


async def result(call: Any) -> Any:
    return await ChannelWorker(cast(Any, Channel(call))).call(inference_pb2.AbortRequest())


@pytest.mark.parametrize("count", [0, 1, 4])
async def test_a_slow_reader_learns_that_the_call_was_cancelled(count: int) -> None:
    call, seen = CancelledCall(count), []

    async def read() -> None:
        async with asyncio.timeout(20), aclosing(messages(call)) as stream:
            async for message in stream:
                await asyncio.sleep(0.01)
                seen.append(message)

    with pytest.raises(errors.Unavailable):
        await read()
    assert seen == list(range(count))
    assert call.cancelled


async def test_a_reader_that_is_cancelled_cancels_the_call() -> None:
    call, began = EndlessCall(0), asyncio.Event()

    async def read() -> None:
        async with aclosing(messages(call)) as stream:
            async for _ in stream:
                began.set()

    reading = asyncio.create_task(read())
    await began.wait()
    reading.cancel()
    await asyncio.wait({reading})
    assert reading.cancelled()
    assert call.cancelled


class UnaryCall(CancelledCall):
    """A call with one response, which this end cancels as a closed channel does, or which never comes."""

    def __init__(self, *, ends: bool) -> None:
        super().__init__(0)
        self._ends = ends

    def __await__(self) -> Generator[Any, None, Any]:
        if self._ends:
            raise asyncio.CancelledError
        yield from asyncio.Event().wait().__await__()


async def test_who_waits_for_a_response_learns_that_the_call_was_cancelled() -> None:
    with pytest.raises(errors.Unavailable):
        await result(UnaryCall(ends=True))


async def test_a_caller_that_is_cancelled_cancels_the_call() -> None:
    call = UnaryCall(ends=False)
    waiting = asyncio.create_task(result(call))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert call.cancelled
