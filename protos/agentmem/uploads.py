"""Uploads that are refused before they were read to their end."""

import asyncio
from collections.abc import AsyncIterable
from contextlib import suppress
from typing import Final

READ_ON_SECONDS: Final = 2.0


async def read_on(upload: AsyncIterable[object]) -> None:
    """Read the rest of a refused upload for a while: a client that is cut off while it writes may not read why."""
    with suppress(TimeoutError):
        async with asyncio.timeout(READ_ON_SECONDS):
            async for _ in upload:
                pass
