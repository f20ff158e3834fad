"""A service manager hears its services: the other end of agentmem.process.service."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from pathlib import Path
from typing import Self


class Heard:
    def __init__(self, directory: Path | None = None) -> None:
        """With `directory` a socket there, else one with an abstract name, which Linux has."""
        name = f"agentmem-test-{secrets.token_hex(8)}"
        self.address = f"@{name}" if directory is None else str(directory / name)
        self.said: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + name if directory is None else self.address)
        self._socket.setblocking(False)

    def listen(self) -> list[str]:
        """All assignments so far, without those of the watchdog that follow one another."""
        with contextlib.suppress(BlockingIOError):
            while True:
                for line in self._socket.recv(65536).decode().split("\n"):
                    if line != "WATCHDOG=1" or self.said[-1:] != [line]:
                        self.said.append(line)
        return self.said

    async def wait_for(self, assignment: str) -> list[str]:
        """Until it has been said. What was said before it, which is forgotten with it."""
        async with asyncio.timeout(60):
            while assignment not in self.listen():
                await asyncio.sleep(0.02)
        before = self.said[: self.said.index(assignment)]
        del self.said[: len(before) + 1]
        return before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
