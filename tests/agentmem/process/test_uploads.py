import asyncio
from collections.abc import AsyncIterator

import pytest

from agentmem.process import wire


async def test_the_rest_is_read() -> None:
    async def upload() -> AsyncIterator[int]:
        for number in range(3):
            yield number
        ended.set()

    ended = asyncio.Event()
    await wire.drain(upload())
    assert ended.is_set()


async def test_what_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def upload() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    monkeypatch.setattr(wire, "READ_ON_SECONDS", 0.01)
    async with asyncio.timeout(20):
        await wire.drain(upload())
