"""A gRPC server as all three processes start it: health, reflection, metrics, tracing, errors, and a socket of its own.

A Unix socket that is removed is made again, within WATCH_SECONDS: connections that are there go on, and new ones find
the new socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from agentmem.channels import SERVER_OPTIONS
from agentmem.process.grpc_metrics import ProcessMetrics
from agentmem.process.health import Health
from agentmem.process.logs import event
from agentmem.process.rpc import Authenticate, RpcInterceptor
from agentmem.process.sockets import AddressError, SocketGuard

log = logging.getLogger(__name__)

WATCH_SECONDS = 1.0

Register = Callable[[Any, grpc.aio.Server], None]


class GrpcServer:
    """One listening gRPC server. Use from one event loop: `start`, `set_serving`, `stop`.

    `services` are (full service name, add_…_to_server, servicer). Health says NOT_SERVING until `set_serving(True)`.
    `credentials` are for TLS. `options` go before SERVER_OPTIONS. `edge` and `authenticate` are as in RpcInterceptor.
    `metrics` count the services' RPCs, and follow the health. `asked` is called whenever the health is asked for.
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
        asked: Callable[[], object] = lambda: None,
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
        self._servers: list[grpc.aio.Server] = []
        path = Path(address.removeprefix("unix:")) if address.startswith("unix:") else None
        self._guard = None if path is None else SocketGuard(path)
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind and listen. Raises AddressError where the address is taken or too long."""
        await self.set_serving(False)
        await self._listen(0o177)
        if self._guard is not None:
            self._watching = asyncio.create_task(self._watch(self._guard))

    async def set_serving(self, serving: bool) -> None:
        """Set the health of the server ("") and of each of its services."""
        for name in ("", *self._names):
            self._health.say(name, serving)
        self._tell(serving)

    async def set_health(self, name: str, problem: str) -> None:
        """Set the health of something that is no service of its own; `problem` is why it does not serve, or empty."""
        self._health.say(name, not problem, problem)

    async def stop(self, grace: float) -> None:
        """Health NOT_SERVING, no new calls, running ones get `grace` seconds; then the socket's lock is let go.

        Clients that watch the health are told, and not waited for.
        """
        self._health.end()
        self._tell(False)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        await asyncio.gather(*(server.stop(grace) for server in self._servers))
        if self._guard is not None:
            await asyncio.to_thread(self._guard.release)

    async def _listen(self, umask: int | None = None) -> None:
        """A server of its own on the address, beside those whose socket is gone. A mask is for the whole process."""
        if self._guard is not None:
            self._guard.take()
        server = self._made()
        previous = None if umask is None else os.umask(umask)
        try:
            if self._credentials is None:
                self.port = server.add_insecure_port(self.address)
            else:
                self.port = server.add_secure_port(self.address, self._credentials)
        except RuntimeError as error:
            await server.stop(None)
            raise AddressError(f"cannot listen on {self.address}: is another process using it?") from error
        finally:
            if previous is not None:
                os.umask(previous)
        self._servers.append(server)
        if self._guard is not None:
            self._guard.bound()
        await server.start()

    def _made(self) -> grpc.aio.Server:
        server = grpc.aio.server(interceptors=[self._interceptor], options=self._options)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        for register, servicer in self._services:
            register(servicer, server)
        names = (*self._names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        return server

    async def _watch(self, guard: SocketGuard) -> None:
        """Make the socket again where it was removed. Who has taken the address meanwhile keeps it."""
        problem = ""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if not guard.is_lost():
                continue
            try:
                await self._listen()
                event(log, "its socket was removed, and is there again", logging.WARNING, address=self.address)
                problem = ""
            except (AddressError, OSError) as error:  # removed once more, before it had its mode
                if str(error) != problem:
                    problem = str(error)
                    event(log, "its socket was removed", logging.ERROR, address=self.address, error=problem)

    def _tell(self, serving: bool) -> None:
        if self._metrics is not None:
            self._metrics.serving(serving)
