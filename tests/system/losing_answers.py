"""A TCP proxy that loses the end of an answer: what is asked arrives, and the client is not told what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Self

_CHUNK = 1 << 16


class LosingAnswers:
    """Listens on `port` of this machine while the block runs, and carries to another port and back.

    Until `break_connections` all connections together carry `after` bytes back, and nothing more. Those that are made
    later carry everything.
    """

    def __init__(self, target: int, *, after: int) -> None:
        self._target = target
        self._left: int | None = after
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self._close()
        await self._server.wait_closed()

    def break_connections(self) -> None:
        """End all connections, and lose nothing from now on."""
        self._left = None
        self._close()

    def _close(self) -> None:
        for writer in self._writers:
            writer.close()

    async def _serve(self, asking: asyncio.StreamReader, answering: asyncio.StreamWriter) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        mine = {answering, writer}
        self._writers |= mine
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_carry(_pieces(asking), writer))
                tasks.create_task(_carry(self._beginning(_pieces(reader)), answering))
        finally:
            self._writers -= mine

    async def _beginning(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            if self._left is None:
                yield piece
                continue
            kept = piece[: self._left]
            self._left -= len(kept)
            if kept:
                yield kept


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with suppress(ConnectionError):
        while piece := await reader.read(_CHUNK):
            yield piece


async def _carry(pieces: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        async for piece in pieces:
            writer.write(piece)
            await writer.drain()
    writer.close()
