"""Nodes of the benchmarks, whose processes are forks of one that has imported their libraries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks import nodes
from benchmarks.nodes import Process
from tests.system.client import Client
from tests.system.forked import Forked

MODEL = "scripted"


class Node(nodes.Node):
    """A library to preload takes effect, since processes are started by name then."""

    def started(self, command: tuple[str, ...], log: Path, environment: dict[str, str]) -> Process:
        if "LD_PRELOAD" in self.environment:
            return super().started(command, log, environment)
        return Forked(command, log, environment)

    @asynccontextmanager
    async def client(self, door: int = 0) -> AsyncIterator[Client]:
        client = Client(self.doors[door], MODEL)
        try:
            yield client
        finally:
            await client.close()
