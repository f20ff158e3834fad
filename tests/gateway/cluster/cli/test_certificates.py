"""`agentmem cluster certificates`: what is made, and what is refused."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentmem.process.cluster_tls import read_cluster_tls
from gateway.cli.main import main


def certificates(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["cluster", "certificates", *arguments])


def test_each_host_gets_a_directory_that_its_node_can_use(tmp_path: Path) -> None:
    place = tmp_path / "cluster"
    made = certificates(str(place), "a.local", "10.0.0.7", "::1")
    assert made.exit_code == 0, made.output
    directories = [Path(line) for line in made.stdout.splitlines()]
    assert [path.parent for path in directories] == [place] * 3
    for directory, host in zip(directories, ("a.local", "10.0.0.7", "::1"), strict=True):
        read_cluster_tls(directory, host)
        assert sorted(path.name for path in directory.iterdir()) == ["ca.pem", "node-key.pem", "node.pem"]
        assert stat.S_IMODE((directory / "node-key.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE((place / "ca-key.pem").stat().st_mode) == 0o600


def test_a_host_that_comes_later_is_signed_by_the_same_authority(tmp_path: Path) -> None:
    certificates(str(tmp_path), "a.local")
    ca = (tmp_path / "ca.pem").read_bytes()
    assert certificates(str(tmp_path), "b.local").exit_code == 0
    assert (tmp_path / "ca.pem").read_bytes() == ca == (tmp_path / "b.local" / "ca.pem").read_bytes()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    certificates(str(tmp_path), "a.local")
    key = (tmp_path / "a.local" / "node-key.pem").read_bytes()
    again = certificates(str(tmp_path), "a.local")
    assert (again.exit_code, "remove that directory" in again.output) == (2, True)
    assert (tmp_path / "a.local" / "node-key.pem").read_bytes() == key


@pytest.mark.parametrize("host", ["a.local:50061", "", "a b", "..", "../x", "é.local"])
def test_what_is_no_host(tmp_path: Path, host: str) -> None:
    refused = certificates(str(tmp_path / "x"), "a.local", host)
    assert (refused.exit_code, "is no host's name" in refused.output) == (2, True)
    assert not (tmp_path / "x").exists()


def test_an_authority_without_its_key(tmp_path: Path) -> None:
    certificates(str(tmp_path), "a.local")
    (tmp_path / "ca-key.pem").unlink()
    refused = certificates(str(tmp_path), "b.local")
    assert (refused.exit_code, "cannot sign" in refused.output) == (2, True)
    (tmp_path / "ca-key.pem").write_text("x")
    assert "no certificate and its key" in certificates(str(tmp_path), "b.local").output
    (tmp_path / "ca-key.pem").write_bytes((tmp_path / "a.local" / "node-key.pem").read_bytes())
    assert "is not the key of" in certificates(str(tmp_path), "b.local").output
