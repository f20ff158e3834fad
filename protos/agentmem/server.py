"""A gRPC server as all three processes start it: health, reflection, metrics, tracing, errors, and a socket of its own.

A second grpc server silently steals a Unix socket and unlinks it when it stops; so the socket is guarded by a lock on
`<socket>.lock`, held as long as the process lives.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from agentmem.addresses import AddressError
from agentmem.channels import SERVER_OPTIONS
from agentmem.interceptors import ErrorInterceptor
from agentmem.process_metrics import ProcessMetrics
from agentmem.traced_calls import TracingInterceptor

MAX_SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107

Register = Callable[[Any, grpc.aio.Server], None]


class GrpcServer:
    """One listening gRPC server. Use from one event loop: `start`, `set_serving`, `stop`.

    `services` are (full service name, add_…_to_server, servicer). Health says NOT_SERVING until `set_serving(True)`.
    `credentials` are for TLS. `options` go before SERVER_OPTIONS. `door`: the callers are not ours; they get the
    request's id back, and each call has a line in the log. `metrics` count the services' RPCs, and follow the health.
    """

    def __init__(
        self,
        address: str,
        services: Sequence[tuple[str, Register, Any]],
        interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]] = (),
        credentials: grpc.ServerCredentials | None = None,
        options: Mapping[str, int | str] | None = None,
        *,
        door: bool = False,
        metrics: ProcessMetrics | None = None,
    ) -> None:
        self.address = address
        self._credentials = credentials
        self.port = 0
        self._lock: IO[str] | None = None
        self._names = [name for name, _, _ in services]
        self._metrics = metrics
        counting = () if metrics is None else (metrics.rpcs.interceptor,)
        if metrics is not None:
            metrics.rpcs.serve(self._names)
        self._server = grpc.aio.server(
            interceptors=(*counting, TracingInterceptor(door=door), *interceptors, ErrorInterceptor()),
            options=list({**dict(SERVER_OPTIONS), **(options or {})}.items()),
        )
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        for _, register, servicer in services:
            register(servicer, self._server)
        names = (*self._names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self) -> None:
        """Bind and listen. Raises AddressError where the address is taken or too long."""
        await self.set_serving(False)
        if self.address.startswith("unix:"):
            self._lock = _lock_socket(Path(self.address.removeprefix("unix:")))
        previous = os.umask(0o177)
        try:
            if self._credentials is None:
                self.port = self._server.add_insecure_port(self.address)
            else:
                self.port = self._server.add_secure_port(self.address, self._credentials)
        except RuntimeError as error:
            raise AddressError(f"cannot listen on {self.address}: is another process using it?") from error
        finally:
            os.umask(previous)
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """Set the health of the server ("") and of each of its services."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, status)
        self._tell(serving)

    async def stop(self, grace: float) -> None:
        """Health NOT_SERVING, no new calls, running ones get `grace` seconds; then the socket's lock is let go."""
        await self._health.enter_graceful_shutdown()
        self._tell(False)
        await self._server.stop(grace)
        if self._lock is not None:
            await asyncio.to_thread(self._lock.close)
            self._lock = None

    def _tell(self, serving: bool) -> None:
        if self._metrics is not None:
            self._metrics.serving(serving)


def _lock_socket(path: Path) -> IO[str]:
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise AddressError(f"the socket path {path} is over {MAX_SOCKET_PATH_BYTES} bytes; choose a shorter --run-dir")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open(f"{path}.lock", "w", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115 - held
    except OSError as error:
        raise AddressError(f"cannot make the socket {path}: {error.strerror}; choose another --run-dir") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise AddressError(f"another server holds {path}; stop it, or choose another --run-dir") from error
    path.unlink(missing_ok=True)
    return lock
