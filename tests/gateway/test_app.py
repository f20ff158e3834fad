"""The gateway as a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from agentmem.channels import connect
from agentmem.layout import GATEWAY_FILE
from agentmem.process.sockets import AddressError, parse_address
from agentmem.v1 import inference_pb2, inference_pb2_grpc
from gateway.app import Gateway, _bind
from tests.gateway.running import ANY_PORT, connected, eventually, settings
from tests.gateway.scripted import ScriptedWorker, delta, endless, finished, started


async def start(run_dir: Path, *arguments: str) -> tuple[asyncio.subprocess.Process, dict[str, str]]:
    ports = ["--http", ANY_PORT, "--grpc", ANY_PORT, "--metrics", ANY_PORT]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "--run-dir", str(run_dir), "--log-format", "json", *ports, *arguments,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    async for line in process.stderr:
        event = json.loads(line)
        if event["message"] == "listening":
            return process, event
    raise AssertionError("it ended before it listened")


@pytest.mark.slow
async def test_listens_tells_where_and_ends(run_dir: Path) -> None:
    process, addresses = await start(run_dir)
    published = json.loads((run_dir / GATEWAY_FILE).read_text())
    assert published == {door: addresses[door] for door in ("http", "grpc", "metrics")}
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"http://{addresses['http']}/healthz")).status_code == 200
        assert (
            "agentmem_gateway_num_requests_running" in (await client.get(f"http://{addresses['metrics']}/metrics")).text
        )
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    assert not (run_dir / GATEWAY_FILE).exists()


@pytest.mark.slow
async def test_sigterm_lets_streams_end(worker: ScriptedWorker, run_dir: Path) -> None:
    go_on = asyncio.Event()

    async def waiting(_: Any) -> AsyncIterator[Any]:
        yield started()
        await go_on.wait()
        yield delta("the end")
        yield finished()

    worker.script = waiting
    process, addresses = await start(run_dir, "--grace", "30")
    body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "stream": True}
    async with connect(addresses["grpc"]) as channel, httpx.AsyncClient(timeout=30) as client:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(inference_pb2.GenerateRequest())
        await call.read()
        async with client.stream("POST", f"http://{addresses['http']}/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            process.send_signal(signal.SIGTERM)
            await eventually(lambda: not (run_dir / GATEWAY_FILE).exists())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async with connect(addresses["grpc"]) as late:
                    await inference_pb2_grpc.InferenceServiceStub(late).Abort(inference_pb2.AbortRequest())
            assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            go_on.set()
            rest = [line async for line in lines]
        assert "data: [DONE]" in rest
        assert (await call.read()).delta.text == "the end"
        assert (await call.read()).WhichOneof("event") == "finished"
    assert await process.wait() == 0


@pytest.mark.slow
async def test_streams_are_ended_after_the_grace(worker: ScriptedWorker, run_dir: Path) -> None:
    worker.script = endless
    process, addresses = await start(run_dir, "--grace", "0.2")
    async with connect(addresses["grpc"]) as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(inference_pb2.GenerateRequest())
        await call.read()
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
        await eventually(lambda: worker.running == 0)


@pytest.mark.parametrize("door", ["http", "grpc"])
async def test_an_address_that_is_taken(gateway: Gateway, run_dir: Path, door: str) -> None:
    second = Gateway(settings(run_dir, **{door: gateway.addresses[door]}))
    with pytest.raises(AddressError, match="cannot listen on"):
        await second.start()


def test_an_address_that_another_may_still_bind_is_not_had() -> None:
    bound = _bind(parse_address(ANY_PORT))
    with bound, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(bound.getsockname())


async def test_a_piece_of_text_does_not_wait_for_the_receipt_of_the_one_before(gateway: Gateway) -> None:
    """Linux acknowledges after 40 ms on a connection that was used before."""
    async with connected(gateway) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        (connection,) = gateway._uvicorn.server_state.connections
        sender = connection.transport.get_extra_info("socket")
        assert sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_gateway_does_not_go_on_without_its_http_server(gateway: Gateway) -> None:
    watched = asyncio.create_task(gateway.watched())
    gateway._uvicorn.should_exit = True
    async with asyncio.timeout(20):
        await watched
