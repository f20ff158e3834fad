"""A store on a directory of its own, asked from a state machine, closed and opened again."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine

from cache_service.tiers.limits import DiskLimits
from tests import scratch
from tests.full_matrix import FULL

from .conftest import running

_T = TypeVar("_T")
LIMITS = DiskLimits(10**9, 0)
EXAMPLES = settings(
    max_examples=int(os.environ.get("AGENTMEM_MODEL_EXAMPLES", "30" if FULL else "4")),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
"""How many orders of calls a state machine tries, of how many calls each."""


class Machine(RuleBasedStateMachine):
    """Has the store and the loop that it runs in."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(dir=scratch.FOLDER, prefix="am"))
        self._crashes = 0
        self.open(self.folder / "0")

    def open(self, data: Path) -> None:
        self.context = running(data, LIMITS)
        self.store = self.runner.run(self.context.__aenter__())

    def shut(self) -> None:
        self.runner.run(self.context.__aexit__(None, None, None))

    def call(self, method: Callable[[Any], Awaitable[_T]], request: object) -> _T:
        async def call() -> _T:
            return await method(request)

        return self.runner.run(call())

    def refused(self, method: Callable[[Any], Awaitable[object]], request: object) -> str:
        try:
            answer = self.call(method, request)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        raise AssertionError(f"was answered: {answer}")

    def reopen(self, crash: bool) -> None:
        """Close the store and open it again; or open what a kill would have left of its directory at this moment."""
        data = self.store.data
        self._crashes += crash
        after = self.folder / str(self._crashes)
        if crash:
            shutil.copytree(data, after, ignore=shutil.ignore_patterns("store.sock*"))
        self.shut()
        if crash:
            shutil.rmtree(data)
        self.open(after)

    def back_up(self) -> Path:
        """Copy the directory, as a kill would leave it at this moment."""
        backup = self.folder / "backup"
        shutil.copytree(self.store.data, backup, ignore=shutil.ignore_patterns("store.sock*"))
        return backup

    def return_to(self, backup: Path) -> None:
        """Have the store go on with a backup, which is used up."""
        data = self.store.data
        self.shut()
        shutil.rmtree(data)
        backup.rename(data)
        self.open(data)

    def teardown(self) -> None:
        self.shut()
        self.runner.close()
        shutil.rmtree(self.folder)
