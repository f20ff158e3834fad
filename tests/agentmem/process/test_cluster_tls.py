"""Certificates of a node: what is good, and what the error says of what is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from agentmem.process.cluster_tls import read_cluster_tls
from agentmem.process.settings import SettingsError
from gateway.cluster.cli.certificates import authority, issue

NEEDED = "needs ca.pem, node.pem and its node-key.pem, in PEM form and not encrypted"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The directory of a node at a.local."""
    return issue(authority(tmp_path), tmp_path, "a.local", 30)


def encrypt(path: Path) -> None:
    """Give a key a passphrase."""
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    how = serialization.BestAvailableEncryption(b"secret")
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))


def of_another(path: Path, name: str) -> None:
    """Put a file of another cluster in place of one."""
    other = issue(authority(path / "other"), path / "other", "a.local", 30)
    (path / name).write_bytes((other / name).read_bytes())


def test_what_the_command_made_is_good(files: Path) -> None:
    tls = read_cluster_tls(files, "a.local")
    assert tls.client().ca == tls.ca
    assert tls.key not in repr(tls).encode()
    tls.server()


def test_of_another_maker(tmp_path: Path) -> None:
    made = trustme.CA()
    issued = made.issue_cert("10.0.0.7")
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "node-key.pem"))
    (tmp_path / "node.pem").write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    read_cluster_tls(tmp_path, "10.0.0.7")


@pytest.mark.parametrize(
    ("spoil", "file", "problem"),
    [
        (lambda path: (path / "ca.pem").unlink(), "ca.pem", "cannot be read"),
        (lambda path: (path / "node-key.pem").unlink(), "node-key.pem", "cannot be read"),
        (lambda path: (path / "ca.pem").write_text("x"), "", NEEDED),
        (lambda path: (path / "node.pem").write_text("x"), "", NEEDED),
        (lambda path: (path / "node-key.pem").write_text("x"), "", NEEDED),
        (lambda path: encrypt(path / "node-key.pem"), "", NEEDED),
        (lambda path: of_another(path, "node-key.pem"), "", f"{NEEDED} (KEY_VALUES_MISMATCH)"),
        (lambda path: of_another(path, "ca.pem"), "node.pem", "cannot be this node's"),
    ],
)
def test_the_error_names_the_files(files: Path, spoil: Callable[[Path], object], file: str, problem: str) -> None:
    spoil(files)
    with pytest.raises(SettingsError) as refused:
        read_cluster_tls(files, "a.local")
    assert str(refused.value).startswith(f"{files / file}: cluster_tls: {problem}")


def test_a_certificate_for_another_host(files: Path) -> None:
    with pytest.raises(SettingsError, match=r"node\.pem.*b\.local.*Hostname mismatch"):
        read_cluster_tls(files, "b.local")
