"""Stacks that tests share, one for each model: starting a worker costs more than most tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests import blas
from tests.system.stack import Stack, hosting

Writer = Callable[[Path], Path]
DEMO = "demo"


class SharedStacks:
    """Stacks for each model that is asked for, until `close`. One test, or one module, uses them at a time.

    They are hosted in this process. Tests that kill services have others, of processes (`killable`).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._directories: dict[Writer, Path] = {}
        self.stacks: dict[tuple[Writer | str, bool], Stack] = {}

    def directory(self, write: Writer) -> Path:
        """Return the model that `write` writes."""
        if write not in self._directories:
            self._directories[write] = write(self._folder / write.__name__)
        return self._directories[write]

    @asynccontextmanager
    async def using(self, model: Writer | str, *services: str, killable: bool = False) -> AsyncIterator[Stack]:
        """Give a stack that is up (default: store and worker) and has no agents.

        Its counters go on from where the last test left them. `model` is a tiny one, by what writes it, or "demo".
        """
        key = (model, killable)
        if key not in self.stacks:
            source = model if isinstance(model, str) else f"tiny={self.directory(model)}"
            self.stacks[key] = Stack(source, hosted=not killable)
        stack = self.stacks[key]
        with ExitStack() as products:
            if model == DEMO:
                products.enter_context(blas.openblas())
            await stack.renew(*services)
            try:
                yield stack
            finally:
                await stack.empty()

    def close(self) -> None:
        """End all services; who asks for stacks again gets new ones."""
        while self.stacks:
            asyncio.run(self.stacks.popitem()[1].destroy())


def of_module(name: str, write: Writer, *flags: str) -> Any:
    """Return a fixture: all three services for a module, with a model of its own and flags of the worker."""

    @pytest_asyncio.fixture(scope="module", loop_scope="module")
    async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
        model = f"{name}={write(tmp_path_factory.mktemp(name) / 'm')}"
        async with hosting(model, "store", "worker", "gateway", worker_flags=flags) as stack:
            yield stack

    return stack
