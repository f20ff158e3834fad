"""Allowed addresses, and Unix sockets that one server owns: gRPC servers silently replace others' sockets."""

import fcntl
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator

from agentmem.addresses import Address as Address
from agentmem.addresses import is_loopback as is_loopback
from agentmem.addresses import listens as listens
from agentmem.addresses import parse_address as parse_address
from agentmem.layout import socket_problem

_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:]+))(?::[0-9]*)?")


class AddressError(Exception):
    """The message says what to do."""


def collector_url(text: str) -> str:
    """Return HOST:PORT or http(s)://HOST:PORT as a URL. Raises ValueError."""
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
    """Return a Host header's name, in small letters, without port; or ""."""
    found = _HOST.fullmatch(header.lower())
    return "" if found is None else found[1] or found[2]


def _loopback(text: str) -> str:
    address = parse_address(text)
    if not is_loopback(address.host):
        raise ValueError(
            f"refuses to listen on {address.host}: callers are not authenticated, so only loopback addresses "
            "(127.0.0.1, [::1], localhost) are served; use an authenticating proxy to serve others"
        )
    return str(address)


def _unix_socket(text: str) -> str:
    if not text.startswith("unix:") or text == "unix:":
        raise ValueError(f"{text!r} is not unix:PATH; whoever can connect is trusted, so only Unix sockets are served")
    return text


def _optional(check: Callable[[str], str]) -> AfterValidator:
    return AfterValidator(lambda text: check(text) if text else text)


def _with_host(text: str) -> str:
    """Return a port alone as one of this machine."""
    return f"127.0.0.1:{text}" if text.isascii() and text.isdigit() else text


TcpAddress = Annotated[str, AfterValidator(lambda text: str(parse_address(_with_host(text))))]
"""Callers need credentials unless `is_loopback`."""

OptionalLoopbackAddress = Annotated[str, _optional(lambda text: _loopback(_with_host(text)))]

OptionalTcpAddress = Annotated[str, _optional(lambda text: str(parse_address(text)))]
"""Empty: the default. Callers need credentials."""

OptionalUnixSocket = Annotated[str, _optional(_unix_socket)]
""" "unix:PATH", or empty for the default."""

OptionalCollector = Annotated[str, _optional(collector_url)]
"""An OTLP collector's URL, or empty."""


class SocketGuard:
    """The lock of one socket. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: IO[str] | None = None

    def take(self) -> None:
        """Lock, and remove a dead server's socket. Raises AddressError."""
        if problem := socket_problem(self._path):
            raise AddressError(f"--run-dir: {self._path} {problem}")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = self._locked()
            self._path.unlink(missing_ok=True)
        except BlockingIOError as error:
            raise AddressError(f"another server holds {self._path}; stop it, or choose another --run-dir") from error
        except OSError as error:
            self.release()
            problem = f"cannot make the socket {self._path}: {error.strerror}; choose another --run-dir"
            raise AddressError(problem) from error

    def release(self) -> None:
        """Keep the lock's file, so that no unlinked file is ever locked."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _locked(self) -> IO[str]:
        path = self._path.with_name(f"{self._path.name}.lock")
        lock = open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115 - held
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            lock.close()
            raise
        return lock
