"""A door without keys answers to this machine's own names only, whatever a web page's name leads to."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from gateway.app import Gateway

from ..running import connected, running
from ..scripted import ScriptedWorker
from ..secured import add_key, secured

OWN = ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:1", "127.9.9.9:8080", "[::1]", "[::1]:8080"]
OTHERS = [
    *("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "localhost@evil", ""),
    *("evil.example:127.0.0.1", "192.168.0.1:8080", "0.0.0.0:8080", "[2001:db8::1]:8080", "[::1"),
    "[127.0.0.1]evil.example",
]


async def answer(gateway: Gateway, host: str, method: str = "GET", path: str = "/v1/models") -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://{gateway.addresses['http']}") as client:
        return await client.request(method, path, headers={"host": host})


async def test_its_own_names(worker: ScriptedWorker, gateway: Gateway) -> None:
    for host in OWN:
        assert (await answer(gateway, host)).status_code == 200, host


@pytest.mark.slow
async def test_other_names(worker: ScriptedWorker, gateway: Gateway) -> None:
    for host in OTHERS:
        refused = await answer(gateway, host)
        assert refused.status_code == 421, host
        assert "--allowed-host" in refused.json()["error"]["message"]
    assert (await answer(gateway, "evil.example", "DELETE", "/v1/agents/bob?all_models=true")).status_code == 421
    for path in ("/metrics", "/openapi.json", "/nope"):
        assert (await answer(gateway, "evil.example", path=path)).status_code == 421
    assert worker.requests == []
    assert (await answer(gateway, "evil.example", path="/healthz")).status_code == 200  # which tells no secret


async def test_a_client_of_http_1_0_need_not_name_one(worker: ScriptedWorker, gateway: Gateway) -> None:
    async with connected(gateway) as (reader, writer):
        writer.write(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")


async def test_names_that_are_allowed(worker: ScriptedWorker, run_dir: Path) -> None:
    async with running(run_dir, allowed_host=["Host.Docker.Internal", "2001:db8::1"]) as gateway:
        for host in ("host.docker.internal:8080", "[2001:db8::1]", "localhost"):
            assert (await answer(gateway, host)).status_code == 200
        assert (await answer(gateway, "docker.internal")).status_code == 421


async def test_keys_are_enough(worker: ScriptedWorker, run_dir: Path) -> None:
    key = add_key(run_dir)
    async with secured(run_dir) as gateway, httpx.AsyncClient(base_url=f"http://{gateway.addresses['http']}") as http:
        headers = {"host": "agentmem.example", "authorization": f"Bearer {key}"}
        assert (await http.get("/v1/models", headers=headers)).status_code == 200
