"""How requests are counted that fail after their status has gone out."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from agentmem import errors
from agentmem.kv.blockfile import CHUNK_BYTES
from gateway.app import Gateway
from gateway.http.middleware import AccessLogMiddleware, whole
from gateway.metrics import GatewayMetrics
from tests.gateway.running import answered, eventually
from tests.gateway.scripted import ScriptedWorker, broken

BODY = {"model": "demo", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
EXPORT = "/v1/agents/{agent}/export"


def counted(metrics: GatewayMetrics) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["route"], sample.labels["code"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "agentmem_http_requests_total"
    }


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
    assert (await http.post(route, json=BODY)).status_code == 200
    await eventually(lambda: counted(gateway.metrics) == {(route, code): 1})
    assert [(line["status"], line["failed"]) for line in answered(caplog)] == [(200, "unavailable")]


async def test_a_file_that_breaks_off_counts_as_its_error_page_would(
    worker: ScriptedWorker, gateway: Gateway, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    worker.file = [b"x" * CHUNK_BYTES, errors.Unavailable("draining")]
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
        await http.get(EXPORT.format(agent="a"), params={"model": "demo"})
    await eventually(lambda: counted(gateway.metrics) == {(EXPORT, "503"): 1})
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
    assert counted(metrics) == {("unmatched", code): 1}
