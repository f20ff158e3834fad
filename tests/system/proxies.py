"""Proxies that break what is answered: the end of an answer is lost, or its stream is reset. What is asked arrives."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

CANCEL: Final = 8
INTERNAL_ERROR: Final = 2
"""Codes of RFC 9113, section 7."""

_CHUNK = 1 << 16
_PREFACE_BYTES: Final = 24
_HEADER_BYTES: Final = 9
_DATA, _RST_STREAM = 0, 3


class _Proxy(ABC):
    """Listens on `port` of this machine while the block runs, and carries to another port and back."""

    def __init__(self, target: int) -> None:
        self._target = target
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

    def _close(self) -> None:
        for writer in self._writers:
            writer.close()

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
        await _carry(_pieces(source), sink)

    @abstractmethod
    async def _answer(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, asking: asyncio.StreamWriter
    ) -> None:
        """Carry what comes back to `sink`; `asking` is the way to where it comes from."""


class LosingAnswers(_Proxy):
    """Carries `after` bytes back, all connections together, and nothing more until `break_connections`.

    Connections that are made later carry everything.
    """

    def __init__(self, target: int, *, after: int) -> None:
        super().__init__(target)
        self._left: int | None = after

    def break_connections(self) -> None:
        """End all connections, and lose nothing from now on."""
        self._left = None
        self._close()

    async def _answer(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, asking: asyncio.StreamWriter
    ) -> None:
        await _carry(self._beginning(_pieces(source)), sink)

    async def _beginning(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            if self._left is None:
                yield piece
                continue
            kept = piece[: self._left]
            self._left -= len(kept)
            if kept:
                yield kept


class ResettingStreams(_Proxy):
    """Carries HTTP/2, but resets the first stream that is answered behind its first message, towards both ends: to the
    client with `code`, as a server or a proxy does that gives it up. All other streams are carried whole.
    """

    def __init__(self, target: int, code: int) -> None:
        super().__init__(target)
        self._code: int | None = code

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


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        header = await reader.readexactly(_HEADER_BYTES)
        yield header + await reader.readexactly(int.from_bytes(header[:3], "big"))


def _reset(stream: int, code: int) -> bytes:
    return (4).to_bytes(3, "big") + bytes((_RST_STREAM, 0)) + stream.to_bytes(4, "big") + code.to_bytes(4, "big")
