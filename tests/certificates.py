"""Certificates of nodes, servers and clients, as another maker than `agentmem cluster certificates` makes them."""

from pathlib import Path

import trustme


def of_node(directory: Path, host: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    issued = authority.issue_cert(host)
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    issued.private_key_pem.write_to_path(str(directory / "node-key.pem"))
    (directory / "node.pem").write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    return directory


def of_server(directory: Path) -> trustme.CA:
    """Write ca.pem, and key and certificate of a server and of a client: server.pem, server.key and so on."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    for name, host in (("server", "127.0.0.1"), ("client", "me@example.org")):
        issued = authority.issue_cert(host)
        issued.private_key_pem.write_to_path(str(directory / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(str(directory / f"{name}.pem"))
    return authority
