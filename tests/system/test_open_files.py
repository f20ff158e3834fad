"""The stack under launchd's limit of 256 open files: services raise it, or serve as many connections as it holds."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests import blas
from tests.system.stack import free_port
from tests.system.test_first_minutes import serving

AGENTMEM = Path(sys.executable).with_name("agentmem")
MANY = 400
GET = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
TURN = {"model": "demo", "messages": [{"role": "user", "content": "The key is in the cellar."}], "max_tokens": 9}


async def answered(port: int, connections: AsyncExitStack) -> tuple[asyncio.StreamReader, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connections.callback(writer.close)
    writer.write(GET)
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(re.findall(rb"content-length: (\d+)", head)[0]))
    return reader, head.partition(b"\r\n")[0]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["-S", "-H -S"], ids=["soft", "hard"])
async def test_four_hundred_connections(which: str, tmp_path: Path) -> None:
    port = free_port()
    variables = {
        **{"AGENTMEM_UP_HTTP": f"127.0.0.1:{port}", "AGENTMEM_UP_GRPC": "127.0.0.1:0", "AGENTMEM_UP_METRICS": ""},
        **{"AGENTMEM_UP_DATA": str(tmp_path / "data"), "AGENTMEM_WORKER_QUALITY_CHECK": "false", blas.VARIABLE: "1"},
    }
    limits = " && ".join(f"ulimit {each} -n 256" for each in reversed(which.split()))
    async with (
        serving(f"bash -c '{limits} && exec {AGENTMEM} up demo'", {**os.environ, **variables}) as said,
        AsyncExitStack() as connections,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
    ):
        held = [await answered(port, connections) for _ in range(MANY)]
        assert {line for _, line in held} == {b"HTTP/1.1 200 OK"}
        closed = sum(reader.at_eof() for reader, _ in held)
        assert (await http.post("/v1/chat/completions", json=TURN)).status_code == 200
        if which == "-S":
            assert closed == 0 and "few open files" not in said
        else:
            assert closed >= MANY - 64, "idle ones made room"
            assert "few open files, so fewer connections files=256 connections=64 of=512" in said
            at_once = [asyncio.open_connection("127.0.0.1", port) for _ in range(MANY)]
            for found in await asyncio.gather(*at_once, return_exceptions=True):
                if not isinstance(found, BaseException):
                    connections.callback(found[1].close)
            assert (await http.get("/v1/models")).status_code == 200
            assert "out of system resource" not in said
