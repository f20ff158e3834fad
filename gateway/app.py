import asyncio
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn

from agentmem.kv.blockfile import CHUNK_BYTES
from agentmem.layout import GATEWAY_FILE
from agentmem.process import open_files
from agentmem.process.exposition import MetricsServer
from agentmem.process.logs import event
from agentmem.process.server import GrpcServer
from agentmem.process.service import ServiceManager
from agentmem.process.settings import SettingsError
from agentmem.process.sockets import Address, AddressError, parse_address
from agentmem.v1 import agent_pb2, inference_pb2, model_pb2
from gateway.edge.admission import Admission
from gateway.edge.tls import Tls
from gateway.extension import Parts
from gateway.grpc.forwarding import Forwarder, GrpcAuthentication, callers_own
from gateway.http.app import HttpServer
from gateway.http.connections import IDLE_SECONDS, MAX_HEADER_BYTES, connection_type
from gateway.rings import of_rings
from gateway.settings import GatewaySettings

log = logging.getLogger(__name__)

_WATCH_SECONDS: Final = 0.5
"""Seconds between looks for calls of revoked keys and for a renewed certificate."""

HANDSHAKE_SECONDS: Final = 10.0
"""Seconds that a gRPC connection may take for TLS and HTTP/2's first frames; gRPC waits for two minutes."""

_MAX_STREAMS: Final = 256
"""Calls at once of one gRPC connection; more wait."""


class Gateway:
    """Event loop only: `start`, then `stop`, each once."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Raise SettingsError for files of keys and TLS that cannot be used."""
        self._settings = settings
        self._tls = Tls(settings.tls) if settings.tls else None
        self.parts = parts = Parts(settings, self._worker_serves, self._judge)
        for ring in of_rings("attach"):
            ring.attach(parts)
        if settings.node and parts.cluster is None:
            raise SettingsError("node: this installation has no clusters")
        self.metrics, self._peers = parts.metrics, parts.peers
        self._admission = Admission()
        self._worker_is_serving = self._said_serving = False
        self.http = HttpServer(
            settings,
            parts.running,
            self.metrics,
            parts.authenticator,
            self._admission,
            self._unready,
            lambda: self._peers.loading,
            parts.routes,
            {name: servicer for name, _, servicer in parts.services},
        )
        self._grpc = self._grpc_server()
        self._address_file = settings.run_directory / GATEWAY_FILE
        self._uvicorn = _Uvicorn(_uvicorn_config(self.http.app, settings, self._tls))

    async def start(self) -> None:
        """Raises AddressError."""
        settings = self._settings
        http = _bind(parse_address(settings.http))
        with ExitStack() as undo:
            undo.callback(http.close)
            self._exposition = MetricsServer(settings.metrics, self.metrics.registry)
            undo.callback(self._exposition.stop)
            await self._grpc.start()
            undo.pop_all()
        self._serving = asyncio.create_task(self._uvicorn.serve([http]))
        await self._peers.look()
        self._looking = asyncio.create_task(self._peers.watch())
        self._recording = asyncio.create_task(self.http.history.watch())
        others: dict[str, str] = {}
        for extension in self.parts.extensions:
            others |= await extension.start()
        await self._judge()
        self.addresses = {
            "http": str(parse_address(settings.http)._replace(port=http.getsockname()[1])),
            "grpc": str(parse_address(settings.grpc)._replace(port=self._grpc.port)),
            "metrics": self._exposition.address,
            **others,
        }
        if self._tls is not None:
            self.addresses["tls"] = "on"
        elif settings.public:
            clear = "keys and prompts travel in clear text; set --tls-cert and --tls-key, or put a TLS proxy in front"
            event(log, clear, logging.WARNING, **settings.public)
        await asyncio.to_thread(_publish, self._address_file, self.addresses)
        self._watching = asyncio.create_task(self._watch())
        peers = {"worker": settings.worker_target, "store": settings.store_target}
        event(log, "listening", logging.INFO, **self.addresses, **peers)

    async def stop(self) -> None:
        """End: health NOT_SERVING, no new work, running requests get the grace."""
        self.http.draining = True
        ending = self.parts.extensions[::-1]
        for extension in ending:
            await extension.leave()
        self._peers.stop()
        await asyncio.wait({self._looking})
        await self._grpc.set_serving(False)
        event(log, "draining", grace=self._settings.grace)
        self._address_file.unlink(missing_ok=True)
        self._uvicorn.should_exit = True
        await asyncio.gather(
            *(extension.stop(self._settings.grace) for extension in ending),
            self._grpc.stop(self._settings.grace),
            self._serving,
        )
        for extension in ending:
            await extension.close()
        self._watching.cancel()
        self._recording.cancel()
        await asyncio.wait({self._watching, self._recording})
        await self.parts.close()
        await asyncio.to_thread(self._exposition.stop)

    async def watched(self) -> None:
        """Return where the HTTP server, or a watch that it needs, has ended by itself, and raise what ended it."""
        watching: set[asyncio.Task[Any]] = {self._serving, self._watching, self._looking, self._recording}
        watching = watching.union(*(extension.tasks() for extension in self.parts.extensions))
        ended, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()

    async def _worker_serves(self, serving: bool) -> None:
        self._worker_is_serving = serving
        await self._judge()
        for extension in self.parts.extensions:
            extension.worker_changed()

    async def _judge(self) -> None:
        problem = self.parts.unready()
        serving = self._worker_is_serving and not problem
        if serving != self._said_serving and not self.http.draining:
            self._said_serving = serving
            await self._grpc.set_serving(serving)
            event(log, "health", serving=serving, reason=self._peers.unready or problem)

    def _unready(self) -> str:
        """Return why no turn could run, empty if one could; and have it looked at again."""
        return self._peers.asked() or self.parts.unready()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if ended := self._admission.end(self.parts.authenticator.stands):
                event(log, "requests of revoked keys ended", requests=ended)
            if self._tls is not None:
                self._tls.reload()

    def _grpc_server(self) -> GrpcServer:
        settings = self._settings
        forward = Forwarder(self.parts.running, callers_own(self.metrics), settings.stall_limit).service
        return GrpcServer(
            settings.grpc,
            [
                forward(inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]),
                forward(agent_pb2.DESCRIPTOR.services_by_name["AgentService"]),
                forward(model_pb2.DESCRIPTOR.services_by_name["ModelService"]),
                *self.parts.services,
            ],
            self._tls.grpc_credentials() if self._tls else None,
            {
                # A chunk of an import fits, however small a body must be.
                "grpc.max_receive_message_length": max(settings.max_body_bytes, 2 * CHUNK_BYTES),
                "grpc.max_metadata_size": MAX_HEADER_BYTES,
                "grpc.absolute_max_metadata_size": MAX_HEADER_BYTES,
                "grpc.server_handshake_timeout_ms": round(HANDSHAKE_SECONDS * 1000),
                "grpc.max_concurrent_streams": _MAX_STREAMS,
                "grpc.max_allowed_incoming_connections": settings.max_connections,
            },
            edge=True,
            authenticate=GrpcAuthentication(self.parts.authenticator, self._admission),
            metrics=self.metrics.process,
            asked=self.http.unready,
        )


async def run(settings: GatewaySettings, stopping: asyncio.Event) -> None:
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    manager = ServiceManager.of_this_process()
    gateway = Gateway(settings.model_copy(update={"max_connections": connections(settings.max_connections)}))
    await gateway.start()
    alive = asyncio.create_task(manager.keep_alive(lambda: True))
    manager.ready(f"serving, HTTP on {gateway.addresses['http']}, gRPC on {gateway.addresses['grpc']}")
    stop, watched = asyncio.create_task(stopping.wait()), asyncio.create_task(gateway.watched())
    await asyncio.wait({stop, watched}, return_when=asyncio.FIRST_COMPLETED)
    manager.stopping()
    if watched.done():
        watched.result()
    watched.cancel()
    await gateway.stop()
    alive.cancel()


def connections(wanted: int) -> int:
    """Return how many connections each of two servers gets, by the limit of open files."""
    files = open_files.raised()
    most = max(1, (files - open_files.OWN) // 2)
    if most < wanted:
        event(log, "few open files, so fewer connections", logging.WARNING, files=files, connections=most, of=wanted)
    return min(most, wanted)


_BACKLOG: Final = 512


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Both servers stop together, so signals are run_service's.
        yield


def _uvicorn_config(app: Any, settings: GatewaySettings, tls: Tls | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=connection_type(settings.max_connections, settings.stall_limit),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ssl_context_factory=(lambda *_: tls.context) if tls else None,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=min(_BACKLOG, settings.max_connections),  # asyncio accepts so many at once, each with a file
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=max(1, round(settings.grace)),
    )


def _bind(address: Address) -> socket.socket:
    """Raises AddressError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY for these alone
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address.host, address.port))
        bound.listen()  # else another process may bind it too, and listen
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
