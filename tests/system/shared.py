"""Stacks that tests share, one for each model: starting a worker costs more than most tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.system.stack import Stack

Writer = Callable[[Path], Path]


class SharedStacks:
    """Store and worker for each model that is asked for, until `close`. One test uses them at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._directories: dict[Writer, Path] = {}
        self.stacks: dict[Writer, Stack] = {}

    def directory(self, write: Writer) -> Path:
        """The model that `write` writes."""
        if write not in self._directories:
            self._directories[write] = write(self._folder / write.__name__)
        return self._directories[write]

    @asynccontextmanager
    async def using(self, write: Writer) -> AsyncIterator[Stack]:
        """A stack that is up and has no agents. Its counters go on from where the last test left them."""
        if write not in self.stacks:
            self.stacks[write] = Stack(f"tiny={self.directory(write)}")
        stack = self.stacks[write]
        await stack.renew()
        try:
            yield stack
        finally:
            await stack.empty()

    def close(self) -> None:
        """End all processes."""
        for stack in self.stacks.values():
            asyncio.run(stack.destroy())
