"""A gateway soon knows the health of its worker and store."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentmem.channels import connect
from agentmem.process.health import WRITES, Health
from agentmem.process.server import GrpcServer
from gateway.peers import Peers

from .running import eventually

SERVICES = {"worker": "agentmem.v1.InferenceService", "store": "agentmem.v1.CacheStoreService"}


class Watched:
    """Peers of two servers that have nothing but their health."""

    def __init__(self, run_dir: Path) -> None:
        self.why = ""
        self.servers = {
            name: GrpcServer(f"unix:{run_dir}/{name}.sock", [(service, lambda *_: None, None)], asked=lambda: self.why)
            for name, service in SERVICES.items()
        }
        self.channels = {name: connect(server.address) for name, server in self.servers.items()}
        self.up: dict[str, bool] = {}
        self.changes: list[bool] = []
        self.peers = Peers(self.channels["worker"], self.channels["store"], self.up.__setitem__, self.changed)

    async def changed(self, serving: bool) -> None:
        self.changes.append(serving)


@asynccontextmanager
async def watched(run_dir: Path) -> AsyncIterator[Watched]:
    watched = Watched(run_dir)
    try:
        for server in watched.servers.values():
            await server.start()
        yield watched
    finally:
        for channel in watched.channels.values():
            await channel.close(None)
        for server in watched.servers.values():
            await server.stop(0)


async def test_each_change_is_told_once(run_dir: Path) -> None:
    async with watched(run_dir) as world:
        await world.peers.look()
        assert (world.changes, world.up) == ([], {"worker": False, "store": False})
        assert world.peers.unready.count("NOT_SERVING") == 2
        for server in world.servers.values():
            await server.set_serving(True)
        await world.peers.look()
        await world.peers.look()
        assert (world.changes, world.up, world.peers.unready) == ([True], {"worker": True, "store": True}, "")
        await world.servers["worker"].set_serving(False)
        await world.peers.look()
        await world.peers.look()
        assert (world.changes, world.up) == ([True, False], {"worker": False, "store": True})
        assert "worker" in world.peers.unready
        assert "store" not in world.peers.unready, "it serves"


async def test_a_worker_says_why_it_does_not_serve(run_dir: Path) -> None:
    """One that drains, or is broken, is not said to load."""
    async with watched(run_dir) as world:
        world.why = "the disk of /home/ada/x is full: ü"
        await world.peers.look()
        assert "the inference worker is NOT_SERVING: the disk of …/x is full: \\xfc" in world.peers.unready
        assert world.peers.loading is None


async def test_turns_need_the_worker_only(run_dir: Path) -> None:
    """Which reaches the store by a channel of its own."""
    async with watched(run_dir) as world:
        await world.servers["worker"].set_serving(True)
        await world.peers.look()
        assert (world.peers.unready, world.up) == ("", {"worker": True, "store": False})


async def test_a_store_that_cannot_write_says_why(run_dir: Path) -> None:
    """The gateway still serves what needs no writing."""
    async with watched(run_dir) as world:
        for server in world.servers.values():
            await server.set_serving(True)
        await world.servers["store"].set_health(WRITES, "the disk of /home/ada/x is full")
        await world.peers.look()
        assert world.peers.unready == "the disk of …/x is full"
        assert (world.changes, world.up) == ([True], {"worker": True, "store": True})
        await world.servers["store"].set_health(WRITES, "")
        await world.peers.look()
        assert world.peers.unready == ""


async def test_a_peer_that_does_not_answer_does_not_serve(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections, and says nothing: as a process that was stopped does."""
    monkeypatch.setattr("gateway.peers.ANSWER_SECONDS", 0.3)
    async with watched(run_dir) as world:
        await world.servers["worker"].stop(0)
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(run_dir / "worker.sock"))
            silent.listen()
            await world.peers.look()
        assert "worker" in world.peers.unready
        assert not world.up["worker"]


@asynccontextmanager
async def watching(world: Watched) -> AsyncIterator[None]:
    """As a gateway watches, from when all serve and it follows them."""
    for server in world.servers.values():
        await server.set_serving(True)
    await world.peers.look()
    task = asyncio.create_task(world.peers.watch())
    try:
        yield
    finally:
        world.peers.stop()
        await task


async def test_what_peers_say_and_that_they_end_is_known_at_once(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentmem.process.health_changes.QUIET_SECONDS", 1000.0)
    async with watched(run_dir) as world, watching(world):
        await world.servers["worker"].set_serving(False)
        await eventually(lambda: world.changes == [True, False])
        await world.servers["worker"].set_serving(True)
        await eventually(lambda: world.changes == [True, False, True])
        await world.servers["store"].set_health(WRITES, "full")
        await eventually(lambda: world.peers.unready == "full")
        await world.servers["store"].stop(0)
        await eventually(lambda: not world.up["store"])
        await world.servers["worker"].stop(0)
        await eventually(lambda: "worker cannot be reached" in world.peers.unready)
        assert world.changes == [True, False, True, False]


async def test_peers_are_not_asked_again_and_again(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def asked() -> int:
        return sum("/grpc.health.v1.Health/Check" in str(record.__dict__) for record in caplog.records)

    monkeypatch.setattr("agentmem.process.health_changes.QUIET_SECONDS", 1000.0)
    caplog.set_level(logging.DEBUG, "agentmem.process.rpc")
    async with watched(run_dir) as world, watching(world):
        before = -1
        async with asyncio.timeout(20):
            while before != asked():  # until the streams are open, and their first messages were looked after
                before = asked()
                await asyncio.sleep(1.0)


async def test_a_peer_that_hangs_is_noticed_by_who_asks(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections stay, and its streams say nothing."""
    monkeypatch.setattr("agentmem.process.health_changes.QUIET_SECONDS", 1000.0)
    monkeypatch.setattr("gateway.peers.ANSWER_SECONDS", 0.3)
    hanging, answering = asyncio.Event(), asyncio.Event()
    answer = Health.Check

    async def check(*arguments: Any) -> Any:
        if hanging.is_set():
            await answering.wait()
        return await answer(*arguments)

    monkeypatch.setattr(Health, "Check", check)
    async with watched(run_dir) as world, watching(world):
        hanging.set()
        await eventually(lambda: "did not answer" in world.peers.asked())
        assert world.changes == [True, False]
        answering.set()
        await eventually(lambda: world.changes == [True, False, True])
        assert world.peers.unready == ""
