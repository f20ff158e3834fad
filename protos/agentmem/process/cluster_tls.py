"""The certificates of a cluster's nodes, which know each other by mTLS with an authority of their own.

DIR/ca.pem         the authority's certificate
DIR/node.pem       this node's certificate for its host, as server and client
DIR/node-key.pem   its private key, without a passphrase
"""

import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc

from agentmem.channels import ClientTls
from agentmem.diagnostics import Diagnostic
from agentmem.process.settings import SettingsError

CA: Final = "ca.pem"
CERT: Final = "node.pem"
KEY: Final = "node-key.pem"

_SETTING: Final = "cluster_tls"
_MADE_BY: Final = "`agentmem cluster certificates` makes these files"
_ROUND_TRIPS: Final = 8


@dataclass(frozen=True)
class ClusterTls:
    ca: bytes
    cert: bytes
    key: bytes = field(repr=False)

    def client(self) -> ClientTls:
        return ClientTls(self.ca, self.cert, self.key)

    def server(self) -> grpc.ServerCredentials:
        """Return credentials of a server that only nodes may call."""
        return grpc.ssl_server_credentials([(self.key, self.cert)], self.ca, require_client_auth=True)


def read_cluster_tls(directory: Path, host: str) -> ClusterTls:
    """Return the certificates, tried in a handshake of this node with itself as `host`. Raises SettingsError."""
    ca, cert, key = (directory / name for name in (CA, CERT, KEY))
    found = ClusterTls(*(_bytes(path) for path in (ca, cert, key)))
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.verify_mode = ssl.CERT_REQUIRED
    try:
        for context in (server, client):
            context.load_verify_locations(ca)
            context.load_cert_chain(cert, key, password="")  # or OpenSSL would ask on the terminal
    except ssl.SSLError as error:
        wanted = f"needs {CA}, {CERT} and its {KEY}, in PEM form and not encrypted"
        raise _error(directory, f"{wanted} ({error.reason or error}); {_MADE_BY}") from None
    try:
        _shake_hands(server, client, host)
    except ssl.SSLCertVerificationError as error:
        said = error.verify_message.removesuffix(".")
        raise _error(cert, f"cannot be this node's, which others reach at {host}: {said}; {_MADE_BY}") from None
    except ssl.SSLError as error:
        raise _error(cert, f"cannot be used as server and client: {error.reason or error}; {_MADE_BY}") from None
    return found


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Raises ssl.SSLError."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(down, up, server_hostname=host), server.wrap_bio(up, down, server_side=True))
    for _ in range(_ROUND_TRIPS):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror}; {_MADE_BY}") from error


def _error(path: Path, problem: str) -> SettingsError:
    return SettingsError(Diagnostic(_SETTING, problem).render(path))
