"""The gRPC server of all processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from agentmem.addresses import grpc_target
from agentmem.channels import SERVER_OPTIONS
from agentmem.process.grpc_metrics import ProcessMetrics
from agentmem.process.health import Health
from agentmem.process.rpc import Authenticate, RpcInterceptor
from agentmem.process.sockets import AddressError, SocketGuard

Register = Callable[[Any, grpc.aio.Server], None]


class GrpcServer:
    """One listening server. Event loop: `start`, `set_serving`, `stop`.

    `services` are (full name, add_…_to_server, servicer). `options` override SERVER_OPTIONS; `edge` and `authenticate`
    are RpcInterceptor's. Health is NOT_SERVING until `set_serving(True)`; `asked` is called at each check, and
    returns why.
    """

    def __init__(
        self,
        address: str,
        services: Sequence[tuple[str, Register, Any]],
        credentials: grpc.ServerCredentials | None = None,
        options: Mapping[str, int | str] | None = None,
        *,
        edge: bool = False,
        authenticate: Authenticate | None = None,
        metrics: ProcessMetrics | None = None,
        asked: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.address = address
        self._credentials = credentials
        self.port = 0
        self._names = [name for name, _, _ in services]
        self._metrics = metrics
        if metrics is not None:
            metrics.rpcs.serve(self._names)
        rpcs = None if metrics is None else metrics.rpcs
        self._interceptor = RpcInterceptor(edge=edge, metrics=rpcs, authenticate=authenticate)
        self._options = list({**dict(SERVER_OPTIONS), **(options or {})}.items())
        self._services = [(register, servicer) for _, register, servicer in services]
        self._health = Health(asked)
        self._server: grpc.aio.Server | None = None
        path = Path(address.removeprefix("unix:")) if address.startswith("unix:") else None
        self._guard = None if path is None else SocketGuard(path)

    async def start(self) -> None:
        """Raises AddressError."""
        await self.set_serving(False)
        if self._guard is not None:
            self._guard.take()
        server, target = self._made(), grpc_target(self.address)
        previous = os.umask(0o177)  # the whole process's
        try:
            if self._credentials is None:
                self.port = server.add_insecure_port(target)
            else:
                self.port = server.add_secure_port(target, self._credentials)
        except RuntimeError as error:
            await server.stop(None)
            raise AddressError(f"cannot listen on {self.address}: is another process using it?") from error
        finally:
            os.umask(previous)
        self._server = server
        await server.start()

    async def set_serving(self, serving: bool) -> None:
        for name in ("", *self._names):
            self._health.say(name, serving)
        self._tell(serving)

    async def set_health(self, name: str, problem: str) -> None:
        """Set the health of another name; `problem` is why it does not serve, or ""."""
        self._health.say(name, not problem, problem)

    async def stop(self, grace: float) -> None:
        """Stop accepting, let calls run for `grace` seconds, and release the socket. Watchers of the health are told,
        not waited for.
        """
        self._health.end()
        self._tell(False)
        if self._server is not None:
            await self._server.stop(grace)
        if self._guard is not None:
            await asyncio.to_thread(self._guard.release)

    def _made(self) -> grpc.aio.Server:
        server = grpc.aio.server(interceptors=[self._interceptor], options=self._options)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        for register, servicer in self._services:
            register(servicer, server)
        names = (*self._names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        return server

    def _tell(self, serving: bool) -> None:
        if self._metrics is not None:
            self._metrics.serving(serving)
