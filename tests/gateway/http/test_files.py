"""An agent's file over HTTP: streamed both ways, whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from agentmem import errors
from agentmem.kv.blockfile import CHUNK_BYTES as CHUNK
from agentmem.v1 import types_pb2
from gateway.app import Gateway
from tests.gateway.running import answers, eventually, running
from tests.gateway.scripted import ScriptedWorker
from tests.gateway.secured import showing

EXPORT = "/v1/agents/%C3%A4/export?model=demo"
IMPORT = "/v1/agents/%C3%A4/import?model=demo"
FILE = {"content-type": "application/octet-stream"}


async def pieces(count: int, size: int) -> AsyncIterator[bytes]:
    for number in range(count):
        yield bytes([number % 256]) * size


async def test_export(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    worker.file = [b"x" * CHUNK, b"y" * CHUNK, b"z"]
    answer = await http.get(EXPORT)
    assert answer.content == b"x" * CHUNK + b"y" * CHUNK + b"z"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%A4.agent"


async def test_an_export_that_is_refused_is_an_error_page(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    worker.file = [errors.NotFound("agent", "ä")]
    answer = await http.get(EXPORT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_import(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    sent = b"".join([piece async for piece in pieces(50, 33_333)])
    answer = await http.post(IMPORT, content=pieces(50, 33_333), headers=FILE)
    assert answer.status_code == 200, answer.text
    first, *chunks = worker.requests
    assert first.key == types_pb2.AgentKey(namespace="default", agent_id="ä", model_id="demo")
    assert b"".join(one.chunk for one in chunks) == sent
    assert {len(one.chunk) for one in chunks[:-1]} == {CHUNK}


async def test_an_import_that_is_refused_says_why_though_much_was_sent(
    worker: ScriptedWorker, http: httpx.AsyncClient
) -> None:
    worker.error = errors.AlreadyExists("agent 'ä' exists")
    answer = await http.post(IMPORT, content=pieces(64, CHUNK), headers=FILE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "already_exists")


@pytest.mark.parametrize("declared", [True, False])
async def test_the_limit_of_files_is_not_that_of_json(
    worker: ScriptedWorker, run_dir: Path, declared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.http.rest.MAX_IMPORT_BYTES", 3 * CHUNK)
    async with running(run_dir) as limited, showing(limited, "") as (http, _):
        size = 3 * CHUNK
        answer = await http.post(IMPORT, content=bytes(size), headers=FILE)
        assert answer.status_code == 200
        worker.ended.clear()
        content = bytes(size + 1) if declared else pieces(13, CHUNK // 4)
        answer = await http.post(IMPORT, content=content, headers=FILE)
        assert answer.status_code == 413
        assert str(size) in answer.json()["error"]["message"]
        if not declared:
            await asyncio.wait_for(worker.ended.wait(), 20)


async def test_leaving_ends_the_import(worker: ScriptedWorker, gateway: Gateway, http: httpx.AsyncClient) -> None:
    async def half() -> AsyncIterator[bytes]:
        yield bytes(CHUNK)
        await asyncio.Event().wait()

    sending = asyncio.create_task(http.post(IMPORT, content=half(), headers=FILE))
    await eventually(lambda: len(worker.requests) == 2)
    sending.cancel()
    await asyncio.wait_for(worker.ended.wait(), 20)
    await eventually(lambda: answers(gateway, "/v1/agents/{agent}/import", "499") == 1)
