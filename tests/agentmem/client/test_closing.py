"""Closing a client or a stream ends what waits on it, at once."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentmem import AsyncClient, Client, errors
from agentmem.client.blocking import LoopThread, _iterate
from tests.gateway.running import eventually
from tests.gateway.scripted import ScriptedWorker, delta, started

SECONDS = 20
"""In which a call that has been ended is over: it would go on for ever otherwise."""


async def endless(_: Any) -> AsyncIterator[Any]:
    yield started()
    while True:
        yield delta("on ")
        await asyncio.sleep(0.01)


async def away(_: Any) -> AsyncIterator[Any]:
    raise errors.Unavailable("starting", 3600)
    yield


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage is waited for as long as the server says."""
    monkeypatch.setattr("agentmem.retries._LONGEST_WAIT", math.inf)


def raised(call: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    errors_of_it = list[BaseException]()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is looked at
            errors_of_it.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors_of_it


@pytest.mark.usefixtures("long_waits")
async def test_a_client_that_is_closed_waits_for_no_outage(address: str, worker: ScriptedWorker) -> None:
    worker.script, waiting = away, asyncio.Event()
    client = AsyncClient(address, patience=math.inf, on_outage=lambda _: waiting.set())
    task = asyncio.create_task(client.agent("marco").ask("Hi"))
    await waiting.wait()
    await client.close()
    with pytest.raises(errors.Cancelled, match="client was closed"):
        await asyncio.wait_for(task, SECONDS)


async def test_a_stream_is_closed_by_another_task(client: AsyncClient, worker: ScriptedWorker) -> None:
    worker.script, said = endless, list[str]()
    stream = client.agent("marco").stream("Hi")

    async def read() -> None:
        async for piece in stream:
            said.append(piece)

    task = asyncio.create_task(read())
    await eventually(lambda: len(said) > 1)
    await stream.close()
    with pytest.raises(errors.Cancelled, match="stream was closed"):
        await asyncio.wait_for(task, SECONDS)
    await eventually(lambda: worker.running == 0)
    await stream.close()
    with pytest.raises(RuntimeError, match="not complete"):
        _ = stream.answer


@pytest.mark.usefixtures("long_waits")
async def test_a_stream_that_is_closed_waits_for_no_outage(address: str, worker: ScriptedWorker) -> None:
    worker.script, waiting = away, asyncio.Event()
    async with AsyncClient(address, patience=math.inf, on_outage=lambda _: waiting.set()) as client:
        stream = client.agent("marco").stream("Hi")
        task = asyncio.create_task(stream.finish())
        await waiting.wait()
        await stream.close()
        with pytest.raises(errors.Cancelled, match="stream was closed"):
            await asyncio.wait_for(task, SECONDS)
        assert len(worker.generated) == 1


async def test_a_stream_that_is_closed_between_two_pieces_does_not_end_as_if_it_were_whole(
    address: str, worker: ScriptedWorker
) -> None:
    worker.script = endless
    async with AsyncClient(address) as client:
        stream = client.agent("marco").stream("Hi")
        pieces = aiter(stream)
        await anext(pieces)
        await stream.close()
        with pytest.raises(errors.Cancelled, match="stream was closed"):
            await anext(pieces)


async def test_a_stream_is_closed_by_another_thread(address: str, worker: ScriptedWorker) -> None:
    worker.script = endless
    with Client(address) as client:
        stream = client.agent("marco").stream("Hi")
        thread, ended = raised(lambda: list(stream))
        await eventually(lambda: worker.running == 1)
        await asyncio.to_thread(stream.close)
        await asyncio.to_thread(thread.join, SECONDS)
        assert [type(error) for error in ended] == [errors.Cancelled]
        await eventually(lambda: worker.running == 0)
        await asyncio.to_thread(client.close)


async def test_a_stream_is_cut_off_between_two_pieces_by_the_end_of_its_client(
    address: str, worker: ScriptedWorker
) -> None:
    worker.script = endless
    client = Client(address)
    said = iter(client.agent("marco").stream("Hi"))
    await asyncio.to_thread(next, said)
    await asyncio.to_thread(client.close)
    with pytest.raises(errors.Cancelled, match="client was closed"):
        await asyncio.to_thread(next, said)


def test_a_call_that_meets_the_end_of_its_client() -> None:
    """The thread of the client has to wait for a file: what is asked for meanwhile is refused, and does not hang."""
    loop, began, over = LoopThread(), threading.Event(), threading.Event()

    def read() -> None:
        began.set()
        over.wait()

    reading, cut = raised(lambda: loop.run(asyncio.to_thread(read)))
    began.wait()
    closing, _ = raised(loop.close)
    try:
        reading.join(SECONDS)
        assert [type(error) for error in cut] == [errors.Cancelled]
        late, refused = raised(lambda: loop.run(asyncio.sleep(3600)))
        late.join(SECONDS)
        assert [str(error) for error in refused] == ["the client is closed"]
    finally:
        over.set()
    closing.join(SECONDS)
    assert not closing.is_alive()


def test_an_iterator_may_be_collected_on_the_loops_own_thread() -> None:
    ended = threading.Event()

    async def items() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            ended.set()

    loop = LoopThread()
    try:
        iterator: Any = _iterate(items(), loop)
        assert next(iterator) == 1

        async def collect() -> None:
            iterator.close()

        loop.run(collect())
        assert ended.wait(SECONDS)
    finally:
        loop.close()


async def test_other_calls_go_on_while_a_file_goes_to_the_disk(
    client: AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, over = threading.Event(), threading.Event()

    def slow(_: int) -> None:
        began.set()
        assert over.wait(SECONDS)

    monkeypatch.setattr(os, "fsync", slow)
    export = asyncio.create_task(client.agent("marco").export(tmp_path / "file"))
    await asyncio.to_thread(began.wait)
    await client.agent("ada").info()
    over.set()
    assert await export == 6


async def test_an_open_file_is_written_from_its_position(client: AsyncClient, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.write(b"before")
        assert await client.agent("marco").export(file) == 6
    assert (tmp_path / "file").read_bytes() == b"beforeonetwo"
    with pytest.raises(OSError, match="nowhere"):
        await client.agent("marco").export(tmp_path / "nowhere" / "file")
