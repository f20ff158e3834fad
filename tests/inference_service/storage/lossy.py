"""A proxy between a client and a store, over Unix sockets, that can lose what travels."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path


class Proxy:
    """Hands bytes on between its own socket and the store's; `loses` is "requests", "answers" or ""."""

    def __init__(self, store: Path) -> None:
        self.loses = ""
        self._store = store
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Break all connections; from now on nothing is lost."""
        self.loses = ""
        for writer in self._writers:
            writer.transport.abort()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_store = await asyncio.open_unix_connection(str(self._store))
        except OSError:  # the store is away
            writer.transport.abort()
            return
        writers = {writer, to_store[1]}
        self._writers |= writers
        try:
            await asyncio.gather(
                self._hand_on(reader, to_store[1], "requests"), self._hand_on(to_store[0], writer, "answers")
            )
        finally:
            self._writers -= writers
            for each in writers:
                each.transport.abort()

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.loses != what:
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def proxy(store: Path, path: Path) -> AsyncIterator[Proxy]:
    served = Proxy(store)
    server = await asyncio.start_unix_server(served.connected, str(path))
    try:
        yield served
    finally:
        served.cut()
        server.close()
