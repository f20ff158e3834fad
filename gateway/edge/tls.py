import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc

from agentmem.diagnostics import Diagnostic
from agentmem.process.logs import event
from agentmem.process.settings import SettingsError

log = logging.getLogger(__name__)

_NO_PASSWORD = ""
"""Else OpenSSL would ask the terminal for that of an encrypted key."""


@dataclass(frozen=True)
class TlsFiles:
    """PEM files, `client_ca` of clients that must have certificates."""

    cert: Path
    key: Path
    client_ca: Path | None = None


class Tls:
    """TLS 1.2 and newer. Event loop only. With a `client_ca` only clients whose certificate it signed are heard
    (mTLS).
    """

    def __init__(self, files: TlsFiles) -> None:
        """Raise SettingsError that names the file."""
        self._files = files
        self._seen = self._state()
        self.context = _context(files)
        self._pair = _pair(files)
        self._client_ca = _bytes("tls_client_ca", files.client_ca) if files.client_ca else None
        self._handed_out = self._pair

    def grpc_credentials(self) -> grpc.ServerCredentials:
        required = self._client_ca is not None
        credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            self._configuration(), cast(Any, self._newer), require_client_authentication=required
        )
        return credentials

    def reload(self) -> None:
        """New connections get what changed. The log says why files cannot be used. A changed `client_ca` takes a
        restart.
        """
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        try:
            _context(self._files)  # half of a pair would break a context
            pair = _pair(self._files)
            self.context.load_cert_chain(self._files.cert, self._files.key, _NO_PASSWORD)
        except (SettingsError, ssl.SSLError, OSError) as error:
            event(log, "the old certificate stays", logging.ERROR, problem=str(error))
            return
        self._pair = pair
        event(log, "certificate renewed", file=str(self._files.cert))

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        """gRPC asks at each handshake, in a thread of its own."""
        if self._handed_out is self._pair:
            return None
        self._handed_out = self._pair
        return self._configuration()

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([self._pair], self._client_ca)

    def _state(self) -> list[tuple[int, int, int] | None]:
        return [_stat(path) for path in (self._files.cert, self._files.key)]


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _pair(files)
    try:
        context.load_cert_chain(files.cert, files.key, _NO_PASSWORD)
    except ssl.SSLError as error:
        problem = f"cannot be used with tls_key {files.key} (both PEM, the key without a passphrase): {error}"
        raise _error("tls_cert", files.cert, problem) from None
    if files.client_ca is not None:
        _bytes("tls_client_ca", files.client_ca)
        try:
            context.load_verify_locations(files.client_ca)
        except ssl.SSLError:
            raise _error("tls_client_ca", files.client_ca, "has no certificate in PEM form") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _pair(files: TlsFiles) -> tuple[bytes, bytes]:
    certificate = _bytes("tls_cert", files.cert)
    return _bytes("tls_key", files.key), certificate


def _error(setting: str, path: Path, problem: str) -> SettingsError:
    return SettingsError(Diagnostic(setting, problem).render(path))


def _bytes(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _error(setting, path, f"cannot be read: {error.strerror}") from error


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
