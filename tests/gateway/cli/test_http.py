"""Commands that ask the HTTP door, by `agentmem cluster status` where there is no list to show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentmem import layout
from gateway.cli.main import main
from tests.gateway.scripted import ScriptedWorker
from tests.gateway.secured import add_key, secured

KEY = "AGENTMEM_API_KEY"


async def status(http: str, *arguments: str, key: str | None = None) -> Result:
    return await asyncio.to_thread(
        CliRunner().invoke, main, ["cluster", "status", "--http", http, *arguments], env={KEY: key}
    )


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_key_is_taken_as_by_other_commands(worker: ScriptedWorker, run_dir: Path, tmp_path: Path) -> None:
    key, file = add_key(run_dir, admin=True), tmp_path / "key"
    file.write_text(f"{key}\n")
    async with secured(run_dir) as gateway:
        http = gateway.addresses["http"]
        for told in (await status(http, key=f"{key}\n"), await status(http, "--key-file", str(file))):
            assert (told.exit_code, "is of no cluster" in told.output) == (1, True), told.output
            assert key not in told.output
        unknown = await status(http)
        assert f"give one in {KEY}, or in a file with --key-file" in unknown.output
    ill_formed = await status(layout.HTTP, key="a\nb")
    assert (ill_formed.exit_code, "is no key" in ill_formed.output, "a\nb" in ill_formed.output) == (2, True, False)


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
        told = await status(http)
    assert (told.exit_code, "name the gateway's HTTP door with --http" in told.output) == (1, True), told.output
