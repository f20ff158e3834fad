"""When the health of other processes is asked for: at news, and not again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem.channels import connect
from agentmem.process.health_changes import HealthChanges
from agentmem.process.server import GrpcServer

NAME = "agentmem.v1.ModelService"


@pytest.fixture(autouse=True)
def nothing_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentmem.process.health_changes.QUIET_SECONDS", 1000.0)


@asynccontextmanager
async def serving(run_dir: Path) -> AsyncIterator[GrpcServer]:
    server = GrpcServer(f"unix:{run_dir}/s.sock", [(NAME, lambda *_: None, None)])
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


@asynccontextmanager
async def following(run_dir: Path) -> AsyncIterator[HealthChanges]:
    async with connect(f"unix:{run_dir}/s.sock") as channel:
        changes = HealthChanges((channel, NAME))
        try:
            yield changes
        finally:
            await changes.close()


async def settled(changes: HealthChanges) -> None:
    async with asyncio.timeout(20):
        while not changes.followed:
            await changes.wait(soon=False)


async def test_what_a_service_says_is_news(run_dir: Path) -> None:
    async with serving(run_dir) as server, following(run_dir) as changes:
        await settled(changes)
        for status in (True, False, True):
            await server.set_serving(status)
            async with asyncio.timeout(20):
                await changes.wait(soon=False)


async def test_its_end_is_news_and_it_is_followed_again(run_dir: Path) -> None:
    async with following(run_dir) as changes:
        for _ in range(2):
            async with serving(run_dir):
                await settled(changes)
            async with asyncio.timeout(20):
                while changes.followed:
                    await changes.wait(soon=False)


async def test_without_news_nothing_is_asked_but_for_who_asks(run_dir: Path) -> None:
    async with serving(run_dir), following(run_dir) as changes:
        await settled(changes)
        waiting = asyncio.create_task(changes.wait(soon=False))
        assert not (await asyncio.wait({waiting}, timeout=0.7))[0]
        changes.asked()
        async with asyncio.timeout(20):
            await waiting
        changes.asked()  # it was looked at for who asked before
        waiting = asyncio.create_task(changes.wait(soon=False))
        assert not (await asyncio.wait({waiting}, timeout=0.1))[0]
        changes.wake()
        await waiting


async def test_a_server_that_stops_does_not_wait_for_who_follows(run_dir: Path) -> None:
    async with serving(run_dir) as server, connect(server.address) as channel:
        await server.set_serving(True)
        call: Any = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=NAME))
        assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
        async with asyncio.timeout(20):
            await server.stop(1000)
        assert (await call.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("there", [True, False])
async def test_calls_end_with_who_follows(run_dir: Path, *, there: bool) -> None:
    """At both ends, in many states of the stream, from one that has not begun on."""
    async with AsyncExitStack() as stack:
        if there:
            await stack.enter_async_context(serving(run_dir))
        before = len(asyncio.all_tasks())
        for turns in (0, 1, 2, 5, 20, 100):
            async with following(run_dir):
                for _ in range(turns):
                    await asyncio.sleep(0)
        async with following(run_dir) as changes:
            await changes.wait(soon=True)
        async with asyncio.timeout(20):
            while len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.01)
