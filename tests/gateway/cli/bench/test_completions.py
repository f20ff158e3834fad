"""The client takes no answer for one that it is not: what servers can get wrong is said, and only whole ones count."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.cli.bench.completions import Client

MESSAGES = [{"role": "user", "content": "hello"}]
DONE = "[DONE]"


def piece(text: str | None = None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": finish}]}


def usage(generated: int, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": generated, **more}}


WHOLE = [piece(""), piece("a"), piece(" b"), piece(finish="length"), usage(2), DONE]


class Scripted:
    """Answers each request with these events, and keeps what it was asked."""

    def __init__(self, events: Sequence[Any], status: str = "200 OK") -> None:
        self._events, self._status = events, status
        self.asked: list[dict[str, Any]] = []

    @asynccontextmanager
    async def client(self, **more: Any) -> AsyncIterator[Client]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "a model", [0, 2], **more)
        try:
            yield client
        finally:
            await client.close()
            server.close()
            await server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        self.asked.append(json.loads(await reader.readexactly(length)))
        writer.write(f"HTTP/1.1 {self._status}\r\ncontent-type: text/event-stream\r\n\r\n".encode())
        for event in self._events:
            told = event if isinstance(event, str) else json.dumps(event)
            writer.write(f": a comment\n\ndata: {told}\n\n".encode())
        await writer.drain()
        writer.close()


async def test_a_whole_answer() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 7}}
    scripted = Scripted([*WHOLE[:-2], usage(2, **details), DONE])
    async with scripted.client() as client:
        answer = await client.ask(MESSAGES, 2)
    assert answer.problem(2) == ""
    assert (answer.text, answer.prompt, answer.generated, answer.cached) == ("a b", 9, 2, 7)
    assert 0 < answer.first <= answer.seconds
    assert len(answer.arrivals) == 2
    [asked] = scripted.asked
    assert asked["messages"] == MESSAGES
    assert (asked["model"], asked["max_tokens"], asked["temperature"]) == ("a model", 2, 0)
    assert asked["logit_bias"] == {"0": -100, "2": -100}


async def test_thoughts_arrive_too_and_tiers_are_those_of_agentmem() -> None:
    thoughts = [{"choices": [{"delta": {name: "hm"}}]} for name in ("reasoning", "reasoning_content")]
    ended = {**piece(finish="length"), "agentmem": {"cached": {"warm": 7}}}
    scripted = Scripted([*thoughts, piece("a"), ended, usage(3), DONE])
    async with scripted.client(top_k=1) as client:
        answer = await client.ask(MESSAGES, 3)
    assert (answer.text, len(answer.arrivals), answer.tiers) == ("a", 3, {"warm": 7})
    assert scripted.asked[0]["top_k"] == 1


@pytest.mark.parametrize(
    ("events", "status", "problem"),
    [
        (WHOLE[:-1], "200 OK", "ended as length, without [DONE]"),
        (WHOLE[:3], "200 OK", "ended as nothing, without [DONE]"),
        ([piece("a"), piece(finish="stop"), usage(1), DONE], "200 OK", "ended as stop"),
        ([piece(" "), piece(finish="length"), usage(2), DONE], "200 OK", "no text"),
        ([piece("a"), piece(finish="length"), usage(1), DONE], "200 OK", "1 tokens instead of 2"),
        ([piece("a"), {"error": {"message": "broken"}}, DONE], "200 OK", "{'message': 'broken'}"),
        ([piece("a"), "{half", DONE], "200 OK", "JSONDecodeError"),
        ([{"error": "no"}], "503 Service Unavailable", "HTTP 503"),
    ],
)
async def test_what_is_not_whole_is_a_problem(events: list[Any], status: str, problem: str) -> None:
    async with Scripted(events, status).client() as client:
        answer = await client.ask(MESSAGES, 2)
    assert answer.problem(2).startswith(problem)
