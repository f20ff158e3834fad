"""Addresses that a service may listen on: where nobody is asked for credentials, only Unix sockets and loopback."""

import re
from ipaddress import ip_address
from typing import Annotated, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator

_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:]+))(?::[0-9]*)?")


class AddressError(Exception):
    """A server cannot have its address; the message says what to do."""


class Address(NamedTuple):
    """A TCP address. `str()` gives "host:port", with an IPv6 host in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def offset(self, by: int) -> "Address":
        """The same host at a later port; port 0 (any) stays 0."""
        return self._replace(port=self.port + by if self.port else 0)


def parse_address(text: str) -> Address:
    """ "host:port" as an Address; port 0 asks for any. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r} needs brackets around its IPv6 host: [{host}]:{port}")
    return Address(host, int(port))


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine only, by its text: names other than localhost are not looked up."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def collector_url(text: str) -> str:
    """HOST:PORT or http(s)://HOST:PORT as a URL with a port. Raises ValueError."""
    problem = f"{text!r} is not HOST:PORT of a collector, nor https://HOST:PORT; its port for gRPC is 4317 as a rule"
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
        address = parse_address(url.netloc if url.port is not None or url.scheme != "https" else f"{url.netloc}:443")
    except ValueError:
        raise ValueError(problem) from None
    if url.scheme not in ("http", "https") or not address.port or "@" in address.host or url.query or url.fragment:
        raise ValueError(problem)
    if url.path not in ("", "/"):
        raise ValueError(f"{problem}, and OTLP over gRPC has no path such as {url.path}")
    return f"{url.scheme}://{address}"


def asked_host(header: str) -> str:
    """The name or address in a Host header, in small letters and without its port; empty where it has none."""
    found = _HOST.fullmatch(header.lower())
    return "" if found is None else found[1] or found[2]


def _any(text: str) -> str:
    return str(parse_address(text))


def _loopback(text: str) -> str:
    address = parse_address(text)
    if not is_loopback(address.host):
        raise ValueError(
            f"refuses to listen on {address.host}: callers are not authenticated, so only loopback addresses "
            "(127.0.0.1, [::1], localhost) are served; use an authenticating proxy to serve others"
        )
    return str(address)


def _loopback_or_empty(text: str) -> str:
    return _loopback(text) if text else text


def _collector_or_empty(text: str) -> str:
    return collector_url(text) if text else text


def _unix_socket_or_empty(text: str) -> str:
    if text and (not text.startswith("unix:") or text == "unix:"):
        raise ValueError(f"{text!r} is not unix:PATH; whoever can connect is trusted, so only Unix sockets are served")
    return text


TcpAddress = Annotated[str, AfterValidator(_any)]
"""A setting: "host:port" on any host. Who takes it asks callers for credentials wherever `is_loopback` is False."""

OptionalLoopbackAddress = Annotated[str, AfterValidator(_loopback_or_empty)]
"""A setting: "host:port" on loopback, or empty for none."""

OptionalUnixSocket = Annotated[str, AfterValidator(_unix_socket_or_empty)]
"""A setting: "unix:PATH", or empty for the usual one."""

OptionalCollector = Annotated[str, AfterValidator(_collector_or_empty)]
"""A setting: where a collector listens for OTLP over gRPC, as a URL, or empty for none."""
