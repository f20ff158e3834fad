"""Clients for load: chats as server-sent events over bare sockets, which are cheap and can be left at any point."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.system.stack import Stack


@dataclass
class Chat:
    """One streamed chat completion, as it came so far."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    text: str = ""
    done: bool = False
    """Whether the stream said [DONE]."""
    last: dict[str, Any] = field(default_factory=dict)
    """The chunk with the finish_reason."""

    async def status(self) -> int:
        """The status of the answer; its headers are passed over."""
        status = int((await self.reader.readline()).split()[1])
        while (await self.reader.readline()).strip():
            pass
        return status

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The chunks, to the end of the stream."""
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


async def open_chat(
    stack: Stack, agent: str, messages: list[tuple[str, str]], *, buffer: int = 0, **fields: object
) -> Chat:
    """Send a streamed chat completion of `agent` and read nothing yet. `buffer` bounds the receive buffer, in bytes."""
    bound = socket.socket()
    if buffer:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    bound.setblocking(False)
    await asyncio.get_running_loop().sock_connect(bound, ("127.0.0.1", stack.ports["http"]))
    reader, writer = await asyncio.open_connection(sock=bound, limit=1 << 18)
    chat = [{"role": role, "content": text} for role, text in messages]
    body = json.dumps({"model": stack.model, "stream": True, "messages": chat, **fields}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-agent-id: {agent}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    return Chat(reader, writer)


async def complete(stack: Stack, agent: str, messages: list[tuple[str, str]], **fields: object) -> Chat:
    """A whole chat completion."""
    chat = await open_chat(stack, agent, messages, **fields)
    try:
        assert await chat.status() == 200, await chat.reader.read(2000)
        async for _ in chat.events():
            pass
    finally:
        await chat.close()
    assert chat.done, "the stream ended without [DONE]"
    return chat
