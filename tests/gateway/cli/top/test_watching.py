from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from gateway.cli.connection import Connection
from gateway.cli.top import sources
from gateway.cli.top.figures import Figures
from gateway.cli.top.reading import Service
from gateway.cli.top.watching import Watched, unless, watch
from gateway.process import Gateway
from tests.gateway.scripted import ScriptedWorker
from tests.gateway.secured import add_key, secured

NOWHERE: dict[Service, str] = {"gateway": "127.0.0.1:1", "worker": "127.0.0.1:1", "store": "127.0.0.1:1"}


async def test_figures_come_until_nobody_wants_more(worker: ScriptedWorker, gateway: Gateway) -> None:
    watched = Watched(NOWHERE, gateway.addresses["grpc"], Connection(), 0.2, 5)
    told: list[Figures] = []

    def three(figures: Figures) -> bool:
        told.append(figures)
        return len(told) < 3

    await watch(watched, three)
    assert [bool(figures.interval_seconds) for figures in told] == [False, True, True]
    assert all(figures.models for figures in told)
    assert all(one.state == "down" for one in told[-1].processes)


async def test_a_key_is_asked_for_and_shown(worker: ScriptedWorker, run_dir: Path) -> None:
    key = add_key(run_dir)
    told: list[Figures] = []

    def once(figures: Figures) -> bool:
        told.append(figures)
        return False

    async with secured(run_dir) as gateway:
        address = gateway.addresses["grpc"]
        for connection in (Connection(), Connection(key)):
            await watch(Watched(NOWHERE, address, connection, 1.0, 5), once)
    assert told[0].models == []
    assert told[0].models_error is not None
    assert told[0].models_error.startswith(f"the gateway at {address} asks for a key; give one in AGENTMEM_API_KEY")
    assert told[0].agents_error == told[0].models_error
    assert told[1].models_error is None
    assert [one.model_id for one in told[1].models] == [one.model_id for one in worker.models]


async def test_work_is_left_as_soon_as_it_is_to_stop() -> None:
    stopping, left = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            stopping.set()
            await asyncio.Event().wait()
        finally:
            left.set()

    assert not await unless(stopping, work())
    assert left.is_set()


def test_nobody_waits_for_a_page_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command, with its loop and its threads, ends while the page would be waited for for an hour."""
    monkeypatch.setattr(sources, "PATIENCE", 3600.0)

    async def leave(silent: socket.socket) -> bool:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        stopping = asyncio.Event()
        watched = Watched({"store": address}, "127.0.0.1:1", Connection(), 1.0, 0)
        watching = asyncio.create_task(unless(stopping, watch(watched, lambda _: True)))
        asked, _ = await asyncio.get_running_loop().sock_accept(silent)
        with asked:
            await asyncio.get_running_loop().sock_recv(asked, 1000)
            stopping.set()
            done = await watching
            reading.extend(thread for thread in threading.enumerate() if thread.name == "page of the store")
            held.append(asked.dup())
        return done

    reading: list[threading.Thread] = []
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        assert not asyncio.run(leave(silent))
    assert [thread.daemon for thread in reading if thread.is_alive()] == [True]
    held[0].close()
    reading[0].join()


async def test_work_that_is_done_or_fails_says_so() -> None:
    async def nothing() -> None:
        pass

    async def fail() -> None:
        raise ValueError("as it was")

    assert await unless(asyncio.Event(), nothing())
    with pytest.raises(ValueError, match="as it was"):
        await unless(asyncio.Event(), fail())
