import subprocess
import sys
from pathlib import Path

import pytest

from agentmem.process.settings import SettingsError, load
from gateway.settings import GatewaySettings, check_files


@pytest.mark.parametrize("flag", ["--http", "--grpc", "--metrics"])
@pytest.mark.parametrize("address", ["0.0.0.0:80", "[::]:80", "192.168.0.1:80", "example.org:80"])
def test_only_loopback(flag: str, address: str) -> None:
    with pytest.raises(SettingsError, match="not authenticated"):
        load(GatewaySettings, [flag, address])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--http", "80800"],
        ["--namespace", ""],
        ["--namespace", "x" * 257],
        ["--stall-limit", "0"],
        ["--allowed-host", "http://a.example"],
        ["--allowed-host", "ab.cd:80"],
        ["--allowed-host", "*"],
        ["--cors-origin", "https://a.example/"],
        ["--cors-origin", "https://A.example"],
        ["--cors-origin", "https://*.example"],
        ["--cors-origin", "a.example"],
    ],
)
def test_refused(arguments: list[str]) -> None:
    with pytest.raises(SettingsError, match=arguments[0].strip("-").replace("-", "_")):
        load(GatewaySettings, arguments)


@pytest.mark.parametrize("door", ["--http", "--grpc"])
def test_a_public_door_asks_for_something(door: str) -> None:
    public = [door, "0.0.0.0:80"]
    for asks in (["--keys", "k.json"], ["--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "a"]):
        assert load(GatewaySettings, [*public, *asks]).public == {door.strip("-"): "0.0.0.0:80"}
    with pytest.raises(SettingsError, match="agentmem keys create"):
        load(GatewaySettings, [*public, "--tls-cert", "c", "--tls-key", "k"])  # which asks for nothing
    with pytest.raises(SettingsError, match="not authenticated"):
        load(GatewaySettings, ["--metrics", "0.0.0.0:80", "--keys", "k.json"])


@pytest.mark.parametrize(
    "arguments",
    [["--tls-cert", "c"], ["--tls-key", "k"], ["--tls-client-ca", "a"], ["--tls-client-ca", "a", "--tls-key", "k"]],
)
def test_tls_by_halves(arguments: list[str]) -> None:
    with pytest.raises(SettingsError, match=r"^tls_"):
        load(GatewaySettings, arguments)


def test_a_file_of_keys_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text("{")
    keys.chmod(0o600)
    with pytest.raises(SettingsError, match="keys: "):
        check_files(load(GatewaySettings, ["--keys", str(keys)]))


def test_agentmem_up_does_not_import_the_doors() -> None:
    program = "import sys, gateway.cli.up.command; print('gateway.app' in sys.modules, 'starlette' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False", "False"]
