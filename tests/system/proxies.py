"""Proxies that break what is answered: at a byte, at its end, or by a reset of its stream. What is asked arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Self

from benchmarks.proxy import Proxy, Target

CANCEL: Final = 8
INTERNAL_ERROR: Final = 2
"""Codes of RFC 9113, section 7."""

_PREFACE: Final = b"PRI * HTTP/2.0"
_PREFACE_BYTES: Final = 24
_HEADER_BYTES: Final = 9
_DATA, _HEADERS, _RST_STREAM = 0, 1, 3


class CuttingProxy(Proxy):
    def __init__(self, target: Target) -> None:
        self.answered = 0
        self._cut_at: int | None = None
        self._cut_in: int | None = None
        self._hold_at: int | None = None
        super().__init__(target)

    def cut_after(self, count: int) -> None:
        """Break the connections once, after so many more bytes of answers."""
        with self._lock:
            self._cut_at = self.answered + count

    def cut_answer_after(self, count: int) -> None:
        """Break once, after so many bytes of the next call's answer, without what HTTP/2 says of an earlier call."""
        with self._lock:
            self._cut_in = count

    @contextmanager
    def losing_answers_after(self, count: int) -> Iterator[None]:
        """Carry so many more bytes of answers, and lose all others until the connections break at the block's end."""
        with self._lock:
            self._hold_at = self.answered + count
        try:
            yield
            with self.cut():
                pass
        finally:
            self._flow()

    def _asked(self, question: bytes) -> int:
        with self._lock:
            if self._cut_in is not None and _begins_a_call(question):
                self._cut_at, self._cut_in = self.answered + self._cut_in, None
        return len(question)

    def _answered(self, answer: bytes) -> int:
        """Return how many of its bytes arrive."""
        with self._lock:
            size = len(answer)
            if self._cut_at is not None and self.answered + size > self._cut_at:
                size, self._cut_at = self._cut_at - self.answered, None
            self.answered += size
            if self._hold_at is not None and self.answered >= self._hold_at:
                self._answers.clear()
                self._hold_at = None
        return size


def _begins_a_call(data: bytes) -> bool:
    at = _PREFACE_BYTES if data.startswith(_PREFACE) else 0
    while at + _HEADER_BYTES <= len(data):
        if data[at + 3] == _HEADERS:
            return True
        at += _HEADER_BYTES + int.from_bytes(data[at : at + 3], "big")
    return False


class ResettingStreams:
    """Carries HTTP/2 on `port` of this machine, but resets the first stream that is answered after its first message.

    Towards both ends: to the client with `code`, as a server or a proxy does that gives it up. All other streams are
    carried whole.
    """

    def __init__(self, target: int, code: int) -> None:
        self._code: int | None = code
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
