"""The `/metrics` page of a process, on a thread of its own, so that a busy event loop still answers.

Callers are not authenticated: it answers to names of this machine only, against DNS rebinding.
"""

import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from agentmem.process.sockets import AddressError, asked_host, is_loopback, parse_address

LATENCY_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 300.0),
)
"""Seconds, the same for all processes, so that histograms can be summed."""

_PRIVATE: Final = ".internal"
"""The suffix of private names such as host.docker.internal, which containers use for their host."""


_END_SECONDS: Final = 1.0
"""A thread that could not be woken, for want of a file descriptor, ends with the process."""


class MetricsServer:
    """Serves one registry at "host:port"; an empty address serves nothing, port 0 takes any. `address` is the actual
    one.

    Raises AddressError and ValueError.
    """

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        self.address = address
        self._server = None
        if not address:
            return
        wanted = parse_address(address)
        try:
            family = socket.getaddrinfo(wanted.host, wanted.port, type=socket.SOCK_STREAM)[0][0]
            self._server = _Server(family, (wanted.host, wanted.port), _Handler)
        except OSError as error:
            problem = error.strerror or str(error)
            raise AddressError(f"cannot serve metrics on {address}: {problem}; choose another --metrics") from error
        self._server.set_app(_for_this_machine(make_wsgi_app(registry)))
        self.address = str(wanted._replace(port=self._server.server_port))
        self._thread = threading.Thread(target=self._server.serve, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.end()
            self._thread.join(_END_SECONDS)
            self._server.server_close()
            self._server = None


class _Server(ThreadingWSGIServer):
    """Sleeps until a client connects; `serve_forever` would wake up twice a second."""

    def __init__(
        self, family: socket.AddressFamily, address: tuple[str, int], handler: type[WSGIRequestHandler]
    ) -> None:
        self.address_family = family
        self._ended = False
        super().__init__(address, handler)

    def serve(self) -> None:
        while not self._ended:
            self.handle_request()

    def end(self) -> None:
        self._ended = True
        with suppress(OSError), socket.create_connection(self.socket.getsockname()[:2], timeout=_END_SECONDS):
            pass


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log no scrapes."""


def _for_this_machine(page: WSGIApplication) -> WSGIApplication:
    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        header = environ.get("HTTP_HOST")
        name = "localhost" if header is None else asked_host(header)  # browsers always send one
        if is_loopback(name) or name.endswith(_PRIVATE):
            return page(environ, start_response)
        start_response("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [b"metrics are for this machine only, and the Host header names another; ask for 127.0.0.1\n"]

    return application
