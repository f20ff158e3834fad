"""Connections over which nobody speaks are closed, and counted until then, with TLS and without."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from agentmem.channels import ClientTls, connect
from agentmem.v1 import inference_pb2, inference_pb2_grpc
from tests.gateway.edge.test_tls import Files
from tests.gateway.running import eventually, running
from tests.gateway.scripted import ScriptedWorker

MOST = 8
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Silent:
    """Connections to a server that say `first` at most."""

    def __init__(self, address: str, number: int, first: bytes = b"") -> None:
        host, _, port = address.rpartition(":")
        self._open = [socket.create_connection((host, int(port))) for _ in range(number)]
        for each in self._open:
            each.setblocking(False)
            if first:
                each.send(first)

    @property
    def open(self) -> int:
        return sum(not _closed(each) for each in self._open)

    def close(self) -> None:
        for each in self._open:
            each.close()


def _closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize(
    ("encrypted", "first"),
    [(False, b""), (False, PREFACE[:9]), (False, PREFACE), (True, b""), (True, b"\x16\x03\x01\x02\x00")],
)
async def test_silent_connections_are_counted_and_then_closed(
    encrypted: bool,
    first: bytes,
    worker: ScriptedWorker,
    run_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They say nothing, too little, or only that they speak HTTP/2 or TLS; the next client is served."""
    monkeypatch.setattr("gateway.app.HANDSHAKE_SECONDS", 1.0)
    files = Files(tmp_path)
    async with running(run_dir, max_connections=MOST, **(files.settings if encrypted else {})) as gateway:
        silent = Silent(gateway.addresses["grpc"], MOST + 4, first)
        try:
            await eventually(lambda: silent.open == MOST)
            await eventually(lambda: silent.open == 0)
        finally:
            silent.close()
        tls = ClientTls(files.ca_file.read_bytes()) if encrypted else None
        async with connect(gateway.addresses["grpc"], tls=tls) as channel, asyncio.timeout(20):
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            await stub.Abort(inference_pb2.AbortRequest(request_id="x"), wait_for_ready=True)
