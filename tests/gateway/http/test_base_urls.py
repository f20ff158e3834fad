"""Clients that miss the API are told what to set; who looks whether there is a server finds one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from agentmem.v1 import inference_pb2
from tests.gateway.running import connected, running
from tests.gateway.scripted import ScriptedWorker


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("POST", "/chat/completions", 404, "lacks /v1; this endpoint is /v1/chat/completions"),
        ("POST", "/messages/count_tokens", 404, "lacks /v1; this endpoint is /v1/messages/count_tokens"),
        ("POST", "/v1/v1/messages", 404, "once too often; this endpoint is /v1/messages"),
        ("POST", "/v1/chat/completions/", 404, "a slash too many; this endpoint is /v1/chat/completions"),
        ("POST", "/api/chat", 404, "Ollama's API, which is not served"),
        ("GET", "/nope", 404, "Not Found; /openapi.json lists the routes"),
        ("GET", "/v1/chat/completions", 405, "takes POST; /openapi.json"),
        ("POST", "/healthz", 405, "this path takes "),
    ],
)
async def test_base_urls(http: httpx.AsyncClient, method: str, path: str, status: int, said: str) -> None:
    answer = await http.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert said in answer.json()["error"]["message"]


async def test_who_looks_whether_there_is_a_server_finds_one(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    assert (await http.head("/")).status_code == 200
    assert (await http.get("/")).json()["openai"] == "/v1"
    browser = await http.get("/", headers={"accept": "text/html,*/*;q=0.8"})
    assert (browser.status_code, browser.headers["location"]) == (307, "ui/")
    assert (await http.get("/health")).json() == (await http.get("/readyz")).json()


async def test_idle_connections_stay(run_dir: Path, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than headers may take, which is what a connection that has not asked yet has."""
    monkeypatch.setattr("gateway.http.connections.HEADER_SECONDS", 0.1)
    async with running(run_dir) as gateway, connected(gateway) as (reader, writer):
        for _ in range(2):
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"keep-alive: timeout=75" in head
            await reader.readexactly(len(b'{"status":"alive"}'))
            await asyncio.sleep(0.3)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost")
        assert await asyncio.wait_for(reader.read(), 30) == b"", "headers that do not come end it"


async def test_requests_without_a_model_go_to_the_default(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    messages = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    bodies = {
        "chat/completions": messages,
        "messages": messages,
        "responses": {"input": "hi"},
        "completions": {"prompt": "hi"},
    }
    for path, body in bodies.items():
        answer = await http.post(f"/v1/{path}", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "demo"
    turns = [each for each in worker.requests if isinstance(each, inference_pb2.GenerateRequest)]
    assert [turn.key.model_id for turn in turns] == ["demo"] * 4
