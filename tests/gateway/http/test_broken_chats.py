"""Chat completions that come to no end: the worker fails or goes away, the client leaves or reads nothing.

And how requests are counted that fail after their status has gone out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from agentmem import errors
from agentmem.kv.blockfile import CHUNK_BYTES
from gateway.app import Gateway
from gateway.http.middleware import AccessLogMiddleware, whole
from gateway.metrics import GatewayMetrics

from ..running import answered, answers, eventually, settings
from ..scripted import ScriptedWorker, broken, delta, endless, started
from .test_chat import BODY, MESSAGES

CHAT = "/v1/chat/completions"
EXPORT = "/v1/agents/{agent}/export"


async def silent(_: Any) -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield started()


async def unfinished(_: Any) -> AsyncIterator[Any]:
    yield started()
    yield delta("half an ans")


async def nothing(_: Any) -> AsyncIterator[Any]:
    return
    yield


async def test_no_worker(http: httpx.AsyncClient) -> None:
    answer = await http.post(CHAT, json={**BODY, "stream": True})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize("script", [broken, unfinished])
async def test_a_failed_stream_ends_as_a_failure(worker: ScriptedWorker, http: httpx.AsyncClient, script: Any) -> None:
    worker.script = script
    answer = await http.post(CHAT, json={**BODY, "stream": True})
    *_, last, empty = answer.text.split("\n\n")
    assert empty == ""
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "unavailable"
    assert "[DONE]" not in answer.text
    assert '"finish_reason":"' not in answer.text


async def test_the_sdk_raises_for_a_failed_stream(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    worker.script = broken
    stream = await sdk.chat.completions.create(model="demo", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="the engine died"):
        [chunk async for chunk in stream]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_without_an_end_is_no_answer(
    worker: ScriptedWorker, http: httpx.AsyncClient, stream: bool
) -> None:
    worker.script = nothing if stream else unfinished
    answer = await http.post(CHAT, json={**BODY, "stream": stream})
    assert answer.status_code == 503


@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_that_goes_away_behind_the_end_of_a_turn_fails_nothing(
    worker: ScriptedWorker, http: httpx.AsyncClient, stream: bool
) -> None:
    worker.resets = True
    answer = await http.post(CHAT, json={**BODY, "stream": stream})
    assert answer.status_code == 200, "SDKs would send it again, and the turn is had already"
    if stream:
        assert answer.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in answer.text
    else:
        assert answer.json()["choices"][0]["message"]["content"] == "Hello 🌍"


async def test_leaving_a_stream_cancels_the_turn(
    worker: ScriptedWorker, gateway: Gateway, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    worker.script = endless
    async with http.stream("POST", CHAT, json={**BODY, "stream": True}) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        assert worker.running == 1
    await asyncio.wait_for(worker.cancelled.wait(), 20)
    await eventually(lambda: worker.running == 0)
    running = gateway.metrics.registry.get_sample_value
    await eventually(lambda: running("agentmem_gateway_num_requests_running", {"door": "http"}) == 0)
    await eventually(lambda: [line["status"] for line in answered(caplog)] == [200])
    assert answered(caplog)[0]["failed"] == "cancelled"
    assert answers(gateway, CHAT, "499") == 1


@pytest.mark.parametrize("script", [endless, silent])
async def test_leaving_before_the_answer_cancels_the_turn(
    worker: ScriptedWorker, gateway: Gateway, http: httpx.AsyncClient, script: Any
) -> None:
    worker.script = script
    asking = asyncio.create_task(http.post(CHAT, json=BODY))
    await eventually(lambda: worker.running == 1)
    asking.cancel()
    await asyncio.wait_for(worker.cancelled.wait(), 20)
    await eventually(lambda: worker.running == 0)
    await eventually(lambda: answers(gateway, CHAT, "499") == 1)


async def burst_and_failure(_: Any) -> AsyncIterator[Any]:
    yield started()
    yield delta("x" * 30_000_000)  # more than the sockets hold, in one event: the next one is the first to stall
    raise errors.Unavailable("the engine died")


async def test_a_reader_that_stalls_before_a_failure_is_cut_off(
    worker: ScriptedWorker, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker.script = burst_and_failure
    gateway = Gateway(settings(run_dir, stall_limit=0.3))
    await gateway.start()
    reader, writer = await asyncio.open_connection(*gateway.addresses["http"].split(":"))
    body = json.dumps({**BODY, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
    await eventually(lambda: bool(worker.requests) and worker.running == 0)  # nobody has read, and the worker is free
    await eventually(lambda: "stalled reader cut off" in caplog.messages)
    received = await reader.read()
    assert b"[DONE]" not in received
    assert not received.endswith(b"0\r\n\r\n")
    writer.close()
    await gateway.stop()
    told = [record.message for record in caplog.records if record.name.startswith("gateway.") and record.levelno > 20]
    assert told == ["stalled reader cut off"]
    assert answers(gateway, CHAT, "503") == 1


@pytest.mark.parametrize(("route", "code"), [("/v1/chat/completions", "503"), ("/v1/messages", "529")])
async def test_a_stream_that_fails_counts_as_its_error_page_would(
    worker: ScriptedWorker,
    gateway: Gateway,
    http: httpx.AsyncClient,
    caplog: pytest.LogCaptureFixture,
    route: str,
    code: str,
) -> None:
    caplog.set_level("INFO")
    worker.script = broken
    assert (await http.post(route, json={**BODY, "max_tokens": 9, "stream": True})).status_code == 200
    await eventually(lambda: answers(gateway, route, code) == 1)
    assert [(line["status"], line["failed"]) for line in answered(caplog)] == [(200, "unavailable")]


async def test_a_file_that_breaks_off_counts_as_its_error_page_would(
    worker: ScriptedWorker, gateway: Gateway, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    worker.file = [b"x" * CHUNK_BYTES, errors.Unavailable("draining")]
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
        await http.get(EXPORT.format(agent="a"), params={"model": "demo"})
    await eventually(lambda: answers(gateway, EXPORT, "503", "GET") == 1)
    assert [(line["status"], line["failed"]) for line in answered(caplog)] == [(200, "unavailable")]
    assert not [record for record in caplog.records if "unexpected error" in record.message], "it is none"


@pytest.mark.parametrize(("all_known", "code"), [(False, "499"), (True, "200")])
async def test_who_leaves_when_all_is_known_has_left_nothing_unfinished(all_known: bool, code: str) -> None:
    async def left(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if all_known:
            whole(scope)
        raise ClientDisconnect

    async def send(_: Message) -> None:
        pass

    metrics = GatewayMetrics()
    scope: Scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    await AccessLogMiddleware(left, metrics)(scope, lambda: asyncio.sleep(0, {}), send)
    labels = {"route": "unmatched", "method": "POST", "code": code}
    assert metrics.registry.get_sample_value("agentmem_http_requests_total", labels) == 1
