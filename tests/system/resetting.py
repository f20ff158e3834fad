"""An HTTP/2 proxy that resets one stream in the middle of its answer, as a server or a proxy does that gives it up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

CANCEL: Final = 8
INTERNAL_ERROR: Final = 2
"""Codes of RFC 9113, section 7."""

_PREFACE_BYTES: Final = 24
_HEADER_BYTES: Final = 9
_DATA, _RST_STREAM = 0, 3


class ResettingStreams:
    """Listens on `port` of this machine while the block runs, and carries frames to another port and back.

    The first stream that is answered is reset behind its first message, towards both ends: to the client with `code`.
    All others are carried whole.
    """

    def __init__(self, target: int, code: int) -> None:
        self._target = target
        self._code: int | None = code
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, asking: asyncio.StreamReader, answering: asyncio.StreamWriter) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        mine = {answering, writer}
        self._writers |= mine
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ask(asking, writer))
                tasks.create_task(self._answer(reader, answering, writer))
        finally:
            self._writers -= mine

    async def _ask(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            sink.write(await source.readexactly(_PREFACE_BYTES))
            async for frame in _frames(source):
                sink.write(frame)
                await sink.drain()
        sink.close()

    async def _answer(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, asking: asyncio.StreamWriter
    ) -> None:
        reset = 0
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            async for frame in _frames(source):
                kind, stream = frame[3], int.from_bytes(frame[5:_HEADER_BYTES], "big")
                if kind == _DATA and stream == reset:
                    continue  # was under way; headers are carried, for both ends count what they have said in them
                sink.write(frame)
                if kind == _DATA and self._code is not None:
                    sink.write(_reset(stream, self._code))
                    asking.write(_reset(stream, CANCEL))
                    reset, self._code = stream, None
                await sink.drain()
        sink.close()


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        header = await reader.readexactly(_HEADER_BYTES)
        yield header + await reader.readexactly(int.from_bytes(header[:3], "big"))


def _reset(stream: int, code: int) -> bytes:
    return (4).to_bytes(3, "big") + bytes((_RST_STREAM, 0)) + stream.to_bytes(4, "big") + code.to_bytes(4, "big")
