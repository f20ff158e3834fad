"""Certificates of a node, as another maker than `agentmem cluster certificates` makes them."""

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
