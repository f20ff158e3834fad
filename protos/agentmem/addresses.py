"""TCP addresses. Imports little."""

import socket
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import quote


class Address(NamedTuple):
    """`str()` has brackets around an IPv6 host."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def offset(self, by: int) -> "Address":
        """Return the same host at a later port; port 0 (any) stays 0."""
        return self._replace(port=self.port + by if self.port else 0)


def parse_address(text: str) -> Address:
    """Parse "host:port"; port 0 means any. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r} needs brackets around its IPv6 host: [{host}]:{port}")
    return Address(host, int(port))


def is_loopback(host: str) -> bool:
    """Return whether `host` is this machine; only localhost is known by name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def grpc_target(target: str) -> str:
    """Return a target as gRPC reads it: as a URL, where a path's %, # and ? have meanings of their own."""
    return f"unix:{quote(target.removeprefix('unix:'))}" if target.startswith("unix:") else target


def listens(target: str) -> bool:
    """Return whether "unix:PATH" or "host:port" accepts connections, or is busy for a second."""
    try:
        if target.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(1.0)
                probe.connect(target.removeprefix("unix:"))
        else:
            socket.create_connection(parse_address(target), 1.0).close()
    except (TimeoutError, BlockingIOError):
        return True
    except OSError:  # also for a path that is too long
        return False
    return True
