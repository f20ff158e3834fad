"""Requests whose end two readers could see differently, and clients that close their half of a connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway

from ..running import eventually, running
from ..scripted import ScriptedWorker, delta, finished, started
from .test_limits import connected, said

BODY = b'{"model": "demo", "messages": [{"role": "user", "content": "hi"}]}'
LINE = b"POST /v1/chat/completions HTTP/1.1\r\n"
HEADERS = b"host: localhost\r\ncontent-type: application/json\r\n"
HEAD = LINE + HEADERS
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
SECOND = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"

GOOD = {
    "length": HEAD + LENGTH + b"\r\n" + BODY,
    "chunks": HEAD + CHUNKED + b"\r\n" + CHUNKS + b"\r\n",
    "an extension": HEAD + CHUNKED + b"\r\n" + CHUNKS.replace(b"0\r\n", b"0;x=y\r\n") + b"\r\n",
    "many chunks": HEAD
    + CHUNKED
    + b"\r\n"
    + b"".join(b"1\r\n%c\r\n" % byte for byte in b" " * 900 + BODY)
    + b"0\r\n\r\n",
}
BAD = {
    "length and chunks": HEAD + LENGTH + CHUNKED + b"\r\n" + CHUNKS + b"\r\n",
    "chunks and length": HEAD + CHUNKED + b"Content-Length: 3\r\n\r\n" + CHUNKS + b"\r\n",
    "chunks in HTTP/1.0": HEAD.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n" + CHUNKS + b"\r\n",
    "all lines in LF": (HEAD + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + BODY,
    "one line in LF": LINE[:-2] + b"\n" + HEADERS + LENGTH + b"\r\n" + BODY,
    "the last line in LF": HEAD + LENGTH + b"\n" + BODY,
    "an end in LF": HEAD + LENGTH[:-2] + b"\n\n" + BODY,
    "a folded header": HEAD + b"x-note: one\r\n two\r\n" + LENGTH + b"\r\n" + BODY,
    "a header folded by a tab": HEAD + b"x-note: one\r\n\ttwo\r\n" + LENGTH + b"\r\n" + BODY,
    "a chunk's line in LF": HEAD + CHUNKED + b"\r\n" + CHUNKS.replace(b"\r\n", b"\n", 1) + b"\r\n",
    "an end of chunks in LF": HEAD + CHUNKED + b"\r\n" + CHUNKS + b"\n",
    "a trailer": HEAD + CHUNKED + b"\r\n" + CHUNKS + b"x-note: one\r\n\r\n",
    "a trailer in LF": HEAD + CHUNKED + b"\r\n" + CHUNKS + b"x-note: one\n\n",
    "tiny chunks": HEAD + CHUNKED + b"\r\n" + b"1\r\n \r\n" * 2000 + CHUNKS + b"\r\n",
}


@pytest.fixture
async def any_gateway(worker: ScriptedWorker, run_dir: Path) -> AsyncIterator[Gateway]:
    async with running(run_dir, grace=0.1) as gateway:
        yield gateway


@pytest.mark.parametrize("pieces", [1, 1_000_000], ids=["at once", "byte by byte"])
@pytest.mark.parametrize("request_", GOOD.values(), ids=GOOD)
async def test_what_has_one_end_is_taken(any_gateway: Gateway, request_: bytes, pieces: int) -> None:
    sent = request_ + SECOND
    answer = await said(any_gateway, *([sent] if pieces == 1 else (sent[at : at + 1] for at in range(len(sent)))))
    assert answer.count(b"HTTP/1.1 200 ") == 2, answer


@pytest.mark.parametrize("first", [b"", GOOD["chunks"]], ids=["alone", "after another"])
@pytest.mark.parametrize("request_", BAD.values(), ids=BAD)
async def test_what_may_have_two_ends_is_refused_and_the_connection_closed(
    any_gateway: Gateway, worker: ScriptedWorker, request_: bytes, first: bytes
) -> None:
    answer = await said(any_gateway, first + request_ + SECOND)
    assert answer.count(b"HTTP/1.1") == 1 + bool(first), answer
    assert answer.rpartition(b"HTTP/1.1")[2].startswith(b" 400 "), answer
    assert b"connection: close" in answer.rpartition(b"HTTP/1.1")[2].lower()
    assert len(worker.generated) == bool(first)


async def test_the_words_of_a_refusal_say_what_to_do(any_gateway: Gateway) -> None:
    assert b"send Content-Length or Transfer-Encoding, not both" in await said(any_gateway, BAD["length and chunks"])
    assert b"end lines with CR LF" in await said(any_gateway, BAD["one line in LF"])
    assert b"write each header on one line" in await said(any_gateway, BAD["a folded header"])


async def slow(_: Any) -> AsyncIterator[Any]:
    yield started()
    await asyncio.sleep(0.6)  # longer than the first looks
    yield delta("a late answer")
    yield finished()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_who_closes_its_half_gets_its_answer(any_gateway: Gateway, worker: ScriptedWorker, method: str) -> None:
    worker.script = slow
    async with connected(any_gateway) as (reader, writer):
        writer.write(GOOD["length"] if method == "POST" else b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        writer.write_eof()
        async with asyncio.timeout(20):
            said = await reader.read()
    *before, answer = said.split(b"HTTP/1.1 ")[1:]
    assert answer.startswith(b"200 "), said
    assert all(one.startswith(b"102 ") for one in before)
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert method == "GET" or body["choices"][0]["message"]["content"] == "a late answer"


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_who_leaves_leaves_no_turn(any_gateway: Gateway, worker: ScriptedWorker, version: bytes) -> None:
    async def endless(_: Any) -> AsyncIterator[Any]:
        yield started()
        await asyncio.Event().wait()

    worker.script = endless
    async with connected(any_gateway) as (_, writer):
        writer.write(GOOD["length"].replace(b"1.1", version))
        await eventually(lambda: worker.running == 1)
    await eventually(lambda: worker.running == 0)


async def test_half_a_request_gets_no_answer(any_gateway: Gateway) -> None:
    async with connected(any_gateway) as (reader, writer):
        writer.write(GOOD["length"][:-1])
        writer.write_eof()
        async with asyncio.timeout(20):
            assert await reader.read() == b""
