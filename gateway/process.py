"""Both doors in one event loop, from listening to draining."""

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import uvicorn

from agentmem.addresses import Address, AddressError, parse_address
from agentmem.channels import connect
from agentmem.exposition import MetricsServer
from agentmem.layout import GATEWAY_FILE
from agentmem.logs import event
from agentmem.server import GrpcServer
from agentmem.v1 import agent_pb2, inference_pb2, model_pb2, workflow_pb2, workflow_pb2_grpc
from gateway.authentication import AuthenticationInterceptor
from gateway.callers import Authenticator, Everyone
from gateway.forwarding import Forwarder
from gateway.http.app import HttpDoor
from gateway.http.connection import connection_class
from gateway.metrics import GatewayMetrics
from gateway.settings import GatewaySettings

log = logging.getLogger(__name__)


class Gateway:
    """One gateway. Use from one event loop: `start`, then `stop`, each once."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self.metrics = GatewayMetrics()
        self._channel = connect(settings.worker_target)
        authenticator = Everyone(settings.namespace)
        self._door = HttpDoor(settings, self._channel, self.metrics, authenticator)
        self._grpc = _grpc_server(settings, self._channel, self.metrics, authenticator)
        self._address_file = settings.run_directory / GATEWAY_FILE
        self._http = _HttpServer(
            uvicorn.Config(
                self._door.app,
                http=connection_class(settings.stall_limit),
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=max(1, round(settings.grace)),
            )
        )
        self._serving: asyncio.Task[None] | None = None
        self._exposition: MetricsServer | None = None
        self.addresses: dict[str, str] = {}

    async def start(self) -> None:
        """Listen on all addresses. Raises AddressError where one cannot be had."""
        settings = self._settings
        http = _bind(parse_address(settings.http))
        try:
            self._exposition = MetricsServer(settings.metrics, self.metrics.registry)
            await self._grpc.start()
        except BaseException:
            http.close()
            if self._exposition is not None:
                await asyncio.to_thread(self._exposition.stop)
            raise
        self._serving = asyncio.create_task(self._http.serve([http]))
        await self._grpc.set_serving(True)
        self.addresses = {
            "http": str(parse_address(settings.http)._replace(port=http.getsockname()[1])),
            "grpc": str(parse_address(settings.grpc)._replace(port=self._grpc.port)),
            "metrics": self._exposition.address,
        }
        await asyncio.to_thread(_publish, self._address_file, self.addresses)
        fields: dict[str, Any] = dict(self.addresses)
        event(log, "listening", worker=settings.worker_target, **fields)

    async def stop(self) -> None:
        """Health NOT_SERVING, no new work, running requests get the grace; then close."""
        self._door.draining = True
        await self._grpc.set_serving(False)
        event(log, "draining", grace=self._settings.grace)
        self._address_file.unlink(missing_ok=True)
        self._http.should_exit = True
        await asyncio.gather(self._grpc.stop(self._settings.grace), *([self._serving] if self._serving else ()))
        await self._channel.close(None)
        if self._exposition is not None:
            await asyncio.to_thread(self._exposition.stop)


async def run(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    gateway = Gateway(settings)
    await gateway.start()
    await stopping.wait()
    await gateway.stop()


class _HttpServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Both doors stop together, so signals are `run`'s.
        yield


def _grpc_server(
    settings: GatewaySettings, channel: grpc.aio.Channel, metrics: GatewayMetrics, authenticator: Authenticator
) -> GrpcServer:
    forwarder = Forwarder(channel, settings.stream_queue, settings.stall_limit, metrics)
    workflows = workflow_pb2.DESCRIPTOR.services_by_name["WorkflowService"].full_name
    return GrpcServer(
        settings.grpc,
        [
            forwarder.service(inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]),
            forwarder.service(agent_pb2.DESCRIPTOR.services_by_name["AgentService"]),
            forwarder.service(model_pb2.DESCRIPTOR.services_by_name["ModelService"]),
            (
                workflows,
                workflow_pb2_grpc.add_WorkflowServiceServicer_to_server,
                cast(Any, workflow_pb2_grpc.WorkflowServiceServicer)(),  # the base answers UNIMPLEMENTED
            ),
        ],
        [AuthenticationInterceptor(authenticator)],
    )


def _bind(address: Address) -> socket.socket:
    """A listening socket, or AddressError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address.host, address.port))
    except OSError as error:
        bound.close()
        raise AddressError(f"cannot listen on {address}: {error.strerror}; choose another --http") from error
    return bound


def _publish(path: Path, addresses: dict[str, str]) -> None:
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.write_text(json.dumps(addresses), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise AddressError(f"cannot write {path}: {error.strerror}; choose another --run-dir") from error
