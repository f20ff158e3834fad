"""The command itself, run on a gateway before a scripted worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.app import Gateway
from gateway.cli.main import main

Command = Callable[..., Coroutine[Any, Any, Result]]


@pytest.fixture
def agentmem(gateway: Gateway) -> Command:
    """Runs `agentmem …` in a thread; it has an event loop of its own."""

    async def run(*arguments: str, say: str = "") -> Result:
        given = [*arguments, "--gateway", gateway.addresses["grpc"]]
        return await asyncio.to_thread(CliRunner().invoke, main, given, input=say)

    return run
