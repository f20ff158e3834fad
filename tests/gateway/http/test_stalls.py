"""Connections whose peer takes nothing are dropped, with whatever waits for it; slow ones are not."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.http import connections
from tests.gateway.running import answers, eventually, running, settings
from tests.gateway.scripted import ScriptedWorker, delta, finished, started

CHUNK = "x" * 100_000
CHUNKS = 60
LIMIT, READS = 1.0, 40


async def long_answer(_: Any) -> AsyncIterator[Any]:
    yield started()
    for _ in range(CHUNKS):
        yield delta(CHUNK)
    yield finished()


async def ask(gateway: Gateway, *, streamed: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client with a small window that has sent its request and reads nothing yet."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    host, port = gateway.addresses["http"].split(":")
    await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=connection)
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "stream": streamed}
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n"
    writer.write(head.encode() + b"connection: close\r\ncontent-type: application/json\r\n\r\n" + content)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return reader, writer


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_peer_that_takes_nothing_is_dropped(
    worker: ScriptedWorker, run_dir: Path, caplog: pytest.LogCaptureFixture, streamed: bool
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    worker.script = long_answer
    gateway = Gateway(settings(run_dir, stall_limit=0.2, grace=60.0))
    await gateway.start()
    reader, writer = await ask(gateway, streamed=streamed)
    await eventually(lambda: "stalled connection dropped" in caplog.messages)
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    assert ("stalled reader cut off" in caplog.messages) == streamed
    code = "499" if streamed else "200"
    await eventually(lambda: answers(gateway, "/v1/chat/completions", code) == 1)
    async with asyncio.timeout(20):  # nor does the end wait for it
        await gateway.stop()


async def test_a_slow_peer_gets_all(
    worker: ScriptedWorker, run_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes longer in all than the limit, but never nothing for so long."""
    caplog.set_level(logging.INFO, "gateway")
    worker.script = long_answer
    monkeypatch.setattr(connections, "_GRACE", 0.0)
    async with running(run_dir, stall_limit=LIMIT) as gateway:
        reader, writer = await ask(gateway, streamed=False)
        began = asyncio.get_running_loop().time()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        size = 0
        while part := await reader.read(CHUNKS * len(CHUNK) // READS):
            size += len(part)
            await asyncio.sleep(LIMIT * 1.2 / READS)
        assert size > CHUNKS * len(CHUNK)
        assert asyncio.get_running_loop().time() - began > LIMIT
        assert "stalled connection dropped" not in caplog.messages
        writer.close()
