from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from agentmem.process.cluster_tls import read_cluster_tls
from agentmem.process.settings import SettingsError
from tests.certificates import of_node

NEEDED = "needs ca.pem, node.pem and its node-key.pem, in PEM form and not encrypted"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return of_node(tmp_path, "a.local")


def encrypt(path: Path) -> None:
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    how = serialization.BestAvailableEncryption(b"secret")
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))


def of_another(path: Path, name: str) -> None:
    other = of_node(path / "other", "a.local")
    (path / name).write_bytes((other / name).read_bytes())


def test_good_ones_can_be_shown(files: Path) -> None:
    tls = read_cluster_tls(files, "a.local")
    assert tls.client().ca == tls.ca
    assert tls.key not in repr(tls).encode()
    tls.server()


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
