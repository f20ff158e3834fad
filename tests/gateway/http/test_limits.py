"""Too large, slow or many requests and connections are refused or cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem.channels import connect
from agentmem.v1 import agent_pb2, agent_pb2_grpc, inference_pb2, inference_pb2_grpc
from gateway.app import Gateway

from ..running import connected, eventually, running
from ..scripted import ScriptedWorker, endless, finished, started

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


async def said(gateway: Gateway, *parts: bytes) -> bytes:
    async with connected(gateway) as (reader, writer):
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(20):
            return await reader.read()


async def test_a_body_that_does_not_come(
    worker: ScriptedWorker, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.http.requests.BODY_SECONDS", 0.2)
    async with running(run_dir) as gateway:
        answer = await said(gateway, HEAD + b"content-length: 1000\r\n\r\n", b'{"model"')
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"the body came too slowly" in answer
        assert b"connection: close" in answer
        chunked = await said(gateway, HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n{\r\n")
        assert chunked.startswith(b"HTTP/1.1 408 ")
        # Slowness of the answer is none of the body.
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}

        async def slow(_: Any) -> AsyncIterator[Any]:
            yield started()
            await asyncio.sleep(0.5)
            yield finished()

        worker.script = slow
        async with httpx.AsyncClient(base_url=f"http://{gateway.addresses['http']}") as http:
            assert (await http.post("/v1/chat/completions", json=body)).status_code == 200


async def test_headers_that_do_not_come(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.connections.HEADER_SECONDS", 0.2)
    async with running(run_dir) as gateway:
        assert await said(gateway) == b""
        assert await said(gateway, HEAD) == b""
        # The second request of a connection is watched, too, and so is a body that nobody wants any more.
        first = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
        assert (await said(gateway, first, HEAD)).count(b"HTTP/1.1") == 1
        refused = b"POST /nope HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n"
        assert (await said(gateway, refused, b"x")).startswith(b"HTTP/1.1 404 ")


async def test_headers_that_are_too_large(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.app.MAX_HEADER_BYTES", 2048)
    async with running(run_dir) as gateway:
        async with httpx.AsyncClient(base_url=f"http://{gateway.addresses['http']}") as http:
            assert (await http.get("/healthz", headers={"x": "y" * 1500})).status_code == 200
        endless = await said(gateway, b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * 1000)
        assert endless.startswith(b"HTTP/1.1 4")
        async with connect(gateway.addresses["grpc"]) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            await health.Check(health_pb2.HealthCheckRequest(), metadata=(("x", "y" * 1000),))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await health.Check(health_pb2.HealthCheckRequest(), metadata=(("x", "y" * 3000),))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_message_that_is_too_large(worker: ScriptedWorker, run_dir: Path) -> None:
    async with running(run_dir, max_body_bytes=1024 * 1024) as gateway, connect(gateway.addresses["grpc"]) as channel:
        stub: Any = agent_pb2_grpc.AgentServiceStub(channel)
        await stub.ProbeAgent(agent_pb2.ProbeAgentRequest(prompt="x" * 1_000_000))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ProbeAgent(agent_pb2.ProbeAgentRequest(prompt="x" * 1_100_000))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(worker.requests) == 1


GET = b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n"
CLOSING = b"GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
BODY = b'{"model": "demo", "messages": [{"role": "user", "content": "hi"}]}'
ASK = HEAD + b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY)


@pytest.mark.parametrize("silent", [0, 30])
async def test_too_many_connections(worker: ScriptedWorker, run_dir: Path, silent: int) -> None:
    worker.script = endless
    async with running(run_dir, max_connections=2, grace=0.1) as gateway, AsyncExitStack() as open_ones:
        for _ in range(2):
            _, writer = await open_ones.enter_async_context(connected(gateway))
            writer.write(ASK)
        await eventually(lambda: worker.running == 2)
        for _ in range(silent):
            await open_ones.enter_async_context(connected(gateway))
        for probe in (b"/healthz", b"/readyz"):
            answer = await said(gateway, GET % probe)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in answer
        refused = await said(gateway, GET % b"/v1/models")
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in refused
        assert b"connection: close" in refused
        assert worker.running == 2


@pytest.mark.parametrize("sent", [b"", HEAD, GET % b"/healthz"], ids=["nothing", "half a request", "one request"])
async def test_a_silent_connection_makes_room(worker: ScriptedWorker, run_dir: Path, sent: bytes) -> None:
    async with running(run_dir, max_connections=8) as gateway, AsyncExitStack() as open_ones:
        silent = [await open_ones.enter_async_context(connected(gateway)) for _ in range(8)]
        for reader, writer in silent if sent else ():
            writer.write(sent)
            if sent.startswith(b"GET"):
                await reader.readuntil(b"}")
        async with connected(gateway) as (reader, writer):
            writer.write(GET % b"/v1/models")
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
            assert await silent[0][0].read() == b""  # the oldest
            silent[-1][1].write(b"\r\n" if sent == HEAD else GET % b"/healthz")
            assert (await silent[-1][0].readuntil(b"}")).startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize("sent", [b"", HEAD], ids=["nothing", "half a request"])
async def test_probes_are_answered_among_silent_strangers(worker: ScriptedWorker, run_dir: Path, sent: bytes) -> None:
    async with running(run_dir, max_connections=32) as gateway, AsyncExitStack() as strangers:
        for number in range(150):
            _, writer = await strangers.enter_async_context(connected(gateway))
            writer.write(sent)
            if number % 30 == 29:
                assert (await said(gateway, CLOSING % b"/healthz")).startswith(b"HTTP/1.1 200 ")
                assert (await said(gateway, CLOSING % b"/readyz")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_who_leaves_leaves_no_turn(worker: ScriptedWorker, run_dir: Path, version: bytes) -> None:
    worker.script = endless
    async with running(run_dir, grace=0.1) as gateway:
        async with connected(gateway) as (_, writer):
            writer.write(ASK.replace(b"1.1", version))
            await eventually(lambda: worker.running == 1)
        await eventually(lambda: worker.running == 0)


async def test_uvicorn_has_what_connections_use(run_dir: Path) -> None:
    async with running(run_dir) as gateway, connected(gateway) as (_, writer):
        server = gateway._uvicorn.server_state
        await eventually(lambda: len(server.connections) == 1)
        (connection,) = server.connections
        assert {"app_state", "conn", "connections", "cycle", "loop", "transport"} <= vars(connection).keys()
        writer.write(GET % b"/healthz")
        await eventually(lambda: connection.cycle is not None and connection.cycle.response_complete)
        assert not connection.cycle.more_body
        assert connection.conn.trailing_data[0] == b""


async def test_calls_of_one_connection(worker: ScriptedWorker, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.app._MAX_STREAMS", 2)
    worker.script = endless
    async with running(run_dir) as gateway, connect(gateway.addresses["grpc"]) as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        calls = [stub.Generate(inference_pb2.GenerateRequest()) for _ in range(2)]
        for call in calls:
            await call.read()
        third = stub.Generate(inference_pb2.GenerateRequest())
        waiting = asyncio.create_task(third.read())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert worker.running == 2
        calls[0].cancel()
        assert (await waiting).HasField("started")
        for call in (calls[1], third):
            call.cancel()
        await eventually(lambda: worker.running == 0)
