"""A gateway on real sockets before a scripted worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import anthropic
import grpc
import httpx
import openai
import pytest
from click.testing import CliRunner, Result

from agentmem.channels import connect
from gateway.app import Gateway
from gateway.cli.main import main

from .running import running
from .scripted import ScriptedWorker

Command = Callable[..., Coroutine[Any, Any, Result]]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine may answer late."""
    monkeypatch.setattr("gateway.peers.ANSWER_SECONDS", 20.0)


@pytest.fixture
async def worker(run_dir: Path) -> AsyncIterator[ScriptedWorker]:
    scripted = ScriptedWorker(f"{run_dir}/worker.sock")
    await scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
async def gateway(run_dir: Path) -> AsyncIterator[Gateway]:
    async with running(run_dir) as started:
        yield started


@pytest.fixture
async def channel(gateway: Gateway) -> AsyncIterator[grpc.aio.Channel]:
    """A client's channel to the gRPC door."""
    async with connect(gateway.addresses["grpc"]) as open_channel:
        yield open_channel


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{gateway.addresses['http']}", timeout=30) as client:
        yield client


@pytest.fixture
async def sdk(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    base_url = f"http://{gateway.addresses['http']}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
async def claude(gateway: Gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    base_url = f"http://{gateway.addresses['http']}"
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="none", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
def agentmem(gateway: Gateway) -> Command:
    """Runs `agentmem …` in a thread; it has an event loop of its own."""

    async def run(*arguments: str, say: str = "") -> Result:
        given = [*arguments, "--gateway", gateway.addresses["grpc"]]
        return await asyncio.to_thread(CliRunner().invoke, main, given, input=say)

    return run
