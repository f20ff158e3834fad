"""Commands that ask the HTTP door, by `agentmem cluster status` where there is no list to show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from click.testing import CliRunner

from gateway.cli.main import main


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n<html>",
        b"HTTP/1.0 200 OK\r\n\r\n[]",
        b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}',
    ],
)
async def test_another_program(answer: bytes) -> None:
    async with answering(answer) as http:
        told = await asyncio.to_thread(CliRunner().invoke, main, ["cluster", "status", "--http", http])
    assert (told.exit_code, "name the gateway's HTTP door with --http" in told.output) == (1, True), told.output
