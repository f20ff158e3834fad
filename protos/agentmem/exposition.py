"""The `/metrics` page of a process, on a port and a thread of its own, so that a busy event loop still answers."""

from prometheus_client import CollectorRegistry, start_http_server


class AddressInUse(Exception):
    """The metrics address cannot be had; the message says what to do."""


class MetricsServer:
    """Serves one registry over HTTP. `address` is "host:port"; an empty address serves nothing, port 0 takes any.

    Afterwards the attribute `address` is the one that it really has.
    """

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        self.address = address
        self._server = None
        if not address:
            return
        host, _, port = address.rpartition(":")
        try:
            self._server, self._thread = start_http_server(int(port), host, registry)
        except (OSError, OverflowError, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error)
            raise AddressInUse(f"cannot serve metrics on {address}: {problem}; choose another --metrics") from error
        self.address = f"{host}:{self._server.server_port}"

    def stop(self) -> None:
        """Stop listening. May be called twice."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None
