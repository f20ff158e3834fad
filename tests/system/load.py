"""Clients for load: chats as server-sent events over bare sockets, which are cheap and can be left at any point."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from tests import blas
from tests.system.stack import Stack, running

MODULES = {"gateway": "gateway", "worker": "inference_service", "store": "cache_service"}
PATIENCE = 300
MEGABYTE = 1 << 20
EXECUTOR = min(32, (os.cpu_count() or 1) + 4)
"""Threads of asyncio's executor, which come one by one when there is work."""


@dataclass
class Chat:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    text: str = ""
    done: bool = False
    """Set by the stream's [DONE]."""
    last: dict[str, Any] = field(default_factory=dict)
    """The chunk with the finish_reason."""

    async def status(self) -> int:
        """The status of the answer; its headers are passed over."""
        status = int((await self.reader.readline()).split()[1])
        while (await self.reader.readline()).strip():
            pass
        return status

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        async for line in self.reader:
            if not line.startswith(b"data: "):
                continue  # the framing of the transfer
            if line.strip() == b"data: [DONE]":
                self.done = True
                return
            chunk: dict[str, Any] = json.loads(line[6:])
            assert "error" not in chunk, chunk
            choice = chunk["choices"][0]
            self.text += choice["delta"].get("content") or ""
            if choice["finish_reason"]:
                self.last = chunk
            yield chunk

    async def close(self) -> None:
        """Leave, wherever the stream is."""
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


async def open_chat(stack: Stack, agent: str, messages: list[tuple[str, str]], **fields: object) -> Chat:
    """Send a streamed chat completion of `agent` and read nothing yet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.ports["http"], limit=1 << 18)
    chat = [{"role": role, "content": text} for role, text in messages]
    body = json.dumps({"model": stack.model, "stream": True, "messages": chat, **fields}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-agent-id: {quote(agent)}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    return Chat(reader, writer)


async def complete(stack: Stack, agent: str, messages: list[tuple[str, str]], **fields: object) -> Chat:
    chat = await open_chat(stack, agent, messages, **fields)
    try:
        assert await chat.status() == 200, await chat.reader.read(2000)
        async for _ in chat.events():
            pass
    finally:
        await chat.close()
    assert chat.done, "the stream ended without [DONE]"
    return chat


@asynccontextmanager
async def observed(
    model: str, folder: Path, patch: pytest.MonkeyPatch, **flags: tuple[str, ...]
) -> AsyncIterator[Stack]:
    """The three services, which tell what they hold in files of `folder`."""
    for name, value in {blas.VARIABLE: "1", "OBSERVED_DIR": str(folder)}.items():
        patch.setenv(name, value)
    async with running(model, "store", "worker", "gateway", under=("tests.system.observed",), **flags) as stack:
        yield stack


IN_USE = 4 * MEGABYTE
"""By which what is in use may grow: what is remembered once, and tables that have doubled."""
PEAKS = {"worker": 64 * MEGABYTE}
"""Bytes that allocators keep of peaks. Idle, a worker had 202 MB, and 1,250 turns later 238; 1 MB more was in use."""
LOOKS = 5
CLOSING = 2
"""Connections of whoever has just looked at the metrics, which may not be closed yet."""


@dataclass(frozen=True)
class Holdings:
    """Idle services' bytes of memory, and their counts by tests.system.observed."""

    memory: dict[str, int]
    counts: dict[str, dict[str, int]]


async def holdings(stack: Stack) -> Holdings:
    """Ask services. OBSERVED_DIR says where they tell it.

    The fewest of several looks: services ask each other how they are all the time, and hold tasks while they ask.
    """
    counts = {name: await _counts(stack, name, module) for name, module in MODULES.items()}
    for _ in range(LOOKS - 1):
        await asyncio.sleep(0.1)
        for name, module in MODULES.items():
            now = await _counts(stack, name, module)
            counts[name] = {kind: min(count, now[kind]) for kind, count in counts[name].items()}
    memory = {name: psutil.Process(stack.processes[name].pid).memory_info().rss for name in MODULES}
    return Holdings(memory, counts)


def check_flat(before: Holdings, after: Holdings, grown: int) -> None:
    """Nothing has grown but by what allocators and caches keep."""
    for name in before.memory:
        assert after.memory[name] <= before.memory[name] + grown + PEAKS.get(name, 0), (name, before, after)
        mine, now = before.counts[name], after.counts[name]
        assert now["in_use"] <= mine["in_use"] + IN_USE, (name, before, after)
        assert now["files"] <= mine["files"] + CLOSING and now["threads"] <= mine["threads"] + EXECUTOR, (
            name,
            before,
            after,
        )
        assert now["tasks"] <= mine["tasks"], (name, before, after)


async def _counts(stack: Stack, name: str, module: str) -> dict[str, int]:
    log = Path(os.environ["OBSERVED_DIR"]) / f"{module}.jsonl"
    before = log.read_text() if log.exists() else ""
    stack.processes[name].send_signal(signal.SIGUSR1)
    async with asyncio.timeout(PATIENCE):
        while not log.exists() or not (told := log.read_text().removeprefix(before)).endswith("\n"):
            await asyncio.sleep(0.02)
    counts: dict[str, int] = json.loads(told)
    return counts


async def idle(stack: Stack) -> None:
    """Wait until neither gateway nor worker works on a request, and the worker writes no more files."""
    written = -1.0
    async with asyncio.timeout(PATIENCE):
        while True:
            busy = [await stack.metric("gateway", "agentmem_gateway_num_requests_running")]
            for state in ("running", "waiting"):
                busy.append(await stack.metric("worker", f"agentmem_num_requests_{state}"))
            now = await stack.metric("worker", "agentmem_cache_store_seconds_count")
            if not any(busy) and now == written:
                return
            written = now
            await asyncio.sleep(0.2)
