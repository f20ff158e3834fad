import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from agentmem.channels import CLIENT_OPTIONS, MAX_MESSAGE_BYTES, SERVER_OPTIONS, connect
from agentmem.layout import MAX_SOCKET_PATH_BYTES
from agentmem.process.server import GrpcServer
from agentmem.process.sockets import AddressError
from agentmem.v1 import model_pb2, model_pb2_grpc

NAME = "agentmem.v1.ModelService"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Models(model_pb2_grpc.ModelServiceServicer):
    def __init__(self, name: str = "first") -> None:
        self.name = name

    async def GetModel(self, request: Any, context: Any) -> Any:
        size = 40 * 1024 * 1024 if request.model_id == "large" else 0
        return model_pb2.GetModelResponse(model=model_pb2.Model(model_id=self.name, error="x" * size))


def server(address: str, servicer: Models | None = None) -> GrpcServer:
    register = model_pb2_grpc.add_ModelServiceServicer_to_server
    return GrpcServer(address, [(NAME, register, servicer or Models())])


async def ask(target: str, model_id: str = "") -> model_pb2.Model:
    async with connect(target) as channel:
        stub = model_pb2_grpc.ModelServiceStub(channel)
        response: Any = await stub.GetModel(model_pb2.GetModelRequest(model_id=model_id))
    return response.model


@pytest.fixture
async def running(run_dir: Path) -> AsyncIterator[GrpcServer]:
    started = server(f"unix:{run_dir}/s.sock")
    await started.start()
    yield started
    await started.stop(0)


async def test_serves_on_a_unix_socket_that_is_private(running: GrpcServer, run_dir: Path) -> None:
    assert (await ask(running.address)).model_id == "first"
    for name in ("s.sock", "s.sock.lock"):
        assert stat.S_IMODE((run_dir / name).stat().st_mode) & 0o077 == 0


async def test_a_second_server_does_not_steal_the_socket(running: GrpcServer) -> None:
    with pytest.raises(AddressError, match="another server"):
        await server(running.address, Models("thief")).start()
    assert (await ask(running.address)).model_id == "first"


async def test_what_a_killed_server_left_behind_is_cleared(run_dir: Path) -> None:
    path = run_dir / "s.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    (run_dir / "s.sock.lock").touch()
    started = server(f"unix:{path}")
    await started.start()
    assert (await ask(started.address)).model_id == "first"
    await started.stop(0)


async def test_a_socket_that_cannot_be_made_is_refused(run_dir: Path) -> None:
    (run_dir / "s.sock").mkdir()
    (run_dir / "file").touch()
    for path, why in (("s.sock", "directory"), ("file/s.sock", "")):
        with pytest.raises(AddressError, match=f"{why}; choose another --run-dir"):
            await server(f"unix:{run_dir}/{path}").start()


async def test_a_socket_path_that_is_too_long_is_refused(run_dir: Path) -> None:
    path = run_dir / ("x" * (MAX_SOCKET_PATH_BYTES - len(str(run_dir))))
    assert len(str(path)) == MAX_SOCKET_PATH_BYTES + 1
    with pytest.raises(AddressError, match="shorter"):
        await server(f"unix:{path}").start()
    longest = str(path)[:-1]
    started = server(f"unix:{longest}")
    await started.start()
    assert (await ask(started.address)).model_id == "first"
    await started.stop(0)


@pytest.mark.parametrize("name", ["a b", "Bu\u0308ro", "100% a%20b", "a#b", "a?b", "~a:b;c&d=e+f", "日本"])
async def test_a_socket_path_may_have_any_character_but_a_comma(name: str, run_dir: Path) -> None:
    (run_dir / name).mkdir()
    started = server(f"unix:{run_dir}/{name}/s.sock")
    await started.start()
    assert (run_dir / name / "s.sock").is_socket()
    assert (await ask(started.address)).model_id == "first"
    await started.stop(0)
    with pytest.raises(AddressError, match="has a comma"):
        await server(f"unix:{run_dir}/{name},/s.sock").start()


async def test_a_port_that_is_taken_is_refused() -> None:
    started = server("127.0.0.1:0")
    await started.start()
    assert started.port > 0
    with pytest.raises(AddressError, match="cannot listen"):
        await server(f"127.0.0.1:{started.port}").start()
    await started.stop(0)


async def health(target: str, service: str = "") -> int:
    async with connect(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        response: Any = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(response.status)


async def test_health_is_what_was_set(running: GrpcServer) -> None:
    for service in ("", NAME):
        assert await health(running.address, service) == NOT_SERVING
    await running.set_serving(True)
    for service in ("", NAME):
        assert await health(running.address, service) == SERVING
    await running.set_serving(False)
    assert await health(running.address) == NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await health(running.address, "unknown.Service")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_who_asks_a_server_for_its_health_is_heard(run_dir: Path) -> None:
    """So that a worker looks at the store as often as it is asked itself."""
    heard: list[None] = []
    server = GrpcServer(f"unix:{run_dir}/s.sock", [], asked=lambda: heard.append(None))
    await server.start()
    async with connect(server.address) as channel:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    await server.stop(0)
    assert heard == [None]


async def test_reflection_lists_the_services(running: GrpcServer) -> None:
    async with connect(running.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        requests = [reflection_pb2.ServerReflectionRequest(list_services="")]
        answers: Any = stub.ServerReflectionInfo(iter(requests))
        names = {service.name async for answer in answers for service in answer.list_services_response.service}
    assert names == {NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


async def test_large_messages_pass(running: GrpcServer) -> None:
    assert len((await ask(running.address, "large")).error) == 40 * 1024 * 1024


def test_both_ends_agree_on_limits() -> None:
    server_options, client_options = dict(SERVER_OPTIONS), dict(CLIENT_OPTIONS)
    for name in ("grpc.max_receive_message_length", "grpc.max_send_message_length"):
        assert server_options[name] == client_options[name] == MAX_MESSAGE_BYTES
    allowed = server_options["grpc.http2.min_ping_interval_without_data_ms"]
    assert int(client_options["grpc.keepalive_time_ms"]) > int(allowed), "else the server takes our pings for abuse"


async def test_the_authority_on_a_unix_socket_is_one_that_every_server_takes(run_dir: Path) -> None:
    """Read from the wire, where grpc writes headers plainly."""
    seen = asyncio.get_running_loop().create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.readexactly(24)
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        while b"GetModel" not in data:
            data += await reader.read(4096)
        if not seen.done():
            seen.set_result(data)
        writer.close()

    listening = await asyncio.start_unix_server(accept, run_dir / "s.sock")
    call = asyncio.create_task(ask(f"unix:{run_dir}/s.sock"))
    data = await seen
    assert b"localhost" in data
    assert run_dir.name.encode() not in data
    listening.close()
    with pytest.raises(grpc.aio.AioRpcError):
        await call
