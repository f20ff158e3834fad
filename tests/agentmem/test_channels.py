"""Channels on a machine that has no time: a peer that is slow to answer is there all the same."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem import channels
from agentmem.channels import ChannelsByAddress, connect
from agentmem.process.server import GrpcServer

SLOW = 0.4
"""Seconds; a busy machine takes as many to say the first word of HTTP/2."""
FASTER = 40
"""How many times as often as else the two ends ping, so that a call need not be silent for minutes."""


@pytest.mark.parametrize("delay", [0.0, SLOW])
async def test_a_peer_that_is_slow_to_begin_is_waited_for(delay: float) -> None:
    server = GrpcServer("127.0.0.1:0", [])
    await server.start()
    await server.set_serving(True)
    copying: set[asyncio.Task[None]] = set()

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            sink.write(data)
        sink.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(delay)
        back, onward = await asyncio.open_connection("127.0.0.1", server.port)
        copying.update({asyncio.create_task(copy(reader, onward)), asyncio.create_task(copy(back, writer))})

    slow = await asyncio.start_server(forward, "127.0.0.1", 0)
    host, port = slow.sockets[0].getsockname()
    async with connect(f"{host}:{port}") as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    slow.close()
    await asyncio.gather(*copying)
    await server.stop(0)


async def test_a_peer_that_was_restarted_is_found_at_once(tmp_path: Path) -> None:
    path = Path("/tmp") / f"am-{tmp_path.name}.sock"
    async with connect(f"unix:{path}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for _ in range(2):
            server = GrpcServer(f"unix:{path}", [])
            await server.start()
            await server.set_serving(True)
            await health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=5)
            await server.stop(0)
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".lock").unlink(missing_ok=True)


async def test_a_call_may_be_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    often = ("grpc.keepalive_time_ms", "grpc.http2.min_ping_interval_without_data_ms")
    scaled = {name: int(value) // FASTER for name, value in channels.SERVER_OPTIONS if name in often}
    assert scaled.keys() == set(often)
    client = {**dict(channels.CLIENT_OPTIONS), "grpc.keepalive_time_ms": scaled["grpc.keepalive_time_ms"]}
    monkeypatch.setattr(channels, "CLIENT_OPTIONS", list(client.items()))
    server = GrpcServer("127.0.0.1:0", [], options=scaled)
    await server.start()
    await server.set_serving(True)
    async with connect(f"127.0.0.1:{server.port}") as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
        await asyncio.sleep(7 * scaled["grpc.keepalive_time_ms"] / 1000)  # The fourth ping is one too many for grpc.
        await server.set_serving(False)
        assert (await call.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        call.cancel()
    await server.stop(0)


async def test_a_process_that_hangs_is_noticed_by_its_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """grpc waits for a ping's answer for a minute, unless that is said besides what keepalive is told."""
    often = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    client = {name: int(value) // FASTER if name in often else value for name, value in channels.CLIENT_OPTIONS}
    assert client.keys() >= set(often)
    monkeypatch.setattr(channels, "CLIENT_OPTIONS", list(client.items()))
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", _SERVER, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        port = int(await server.stdout.readline())
        async with connect(f"127.0.0.1:{port}") as channel:
            call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
            server.send_signal(signal.SIGSTOP)
            with pytest.raises(grpc.aio.AioRpcError) as gone:
                await asyncio.wait_for(call.read(), 30)
            assert gone.value.code() == grpc.StatusCode.UNAVAILABLE
    finally:
        server.kill()
        await server.wait()


_SERVER = """
import asyncio
from agentmem.process.server import GrpcServer

async def serve() -> None:
    server = GrpcServer("127.0.0.1:0", [])
    await server.start()
    await server.set_serving(True)
    print(server.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(serve())
"""


async def test_a_channel_that_nobody_asks_for_is_closed_after_its_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    server = GrpcServer("127.0.0.1:0", [])
    await server.start()
    await server.set_serving(True)
    by_address, address = ChannelsByAddress(connect), f"127.0.0.1:{server.port}"
    first = by_address.to(address)
    assert by_address.to(address) is first
    watch = health_pb2_grpc.HealthStub(first).Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    monkeypatch.setattr(channels, "IDLE_SECONDS", 0.0)
    by_address.to("127.0.0.1:1")
    await asyncio.sleep(0.1)
    await server.set_serving(False)
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()
    async with asyncio.timeout(20):
        while first.get_state() is not grpc.ChannelConnectivity.SHUTDOWN:
            await asyncio.sleep(0.01)
    assert by_address.to(address) is not first
    await by_address.close()
    await server.stop(0)
