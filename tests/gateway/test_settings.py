from pathlib import Path

import pytest

from agentmem.process.settings import SettingsError, load
from gateway.edge.callers import CallerLimits
from gateway.settings import GatewaySettings


def test_worker_is_in_the_run_directory(tmp_path: Path) -> None:
    assert load(GatewaySettings, ["--run-dir", str(tmp_path)]).worker_target == f"unix:{tmp_path}/worker.sock"
    assert load(GatewaySettings, ["--worker", "localhost:1"]).worker_target == "localhost:1"


def test_store_is_in_the_run_directory(tmp_path: Path) -> None:
    assert load(GatewaySettings, ["--run-dir", str(tmp_path)]).store_target == f"unix:{tmp_path}/store.sock"
    assert load(GatewaySettings, ["--store", "localhost:1"]).store_target == "localhost:1"


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_GATEWAY_STALL_LIMIT", "2.5")
    assert load(GatewaySettings, []).stall_limit == 2.5


@pytest.mark.parametrize("flag", ["--http", "--grpc", "--metrics"])
@pytest.mark.parametrize("address", ["0.0.0.0:80", "[::]:80", "192.168.0.1:80", "example.org:80"])
def test_only_loopback(flag: str, address: str) -> None:
    with pytest.raises(SettingsError, match="not authenticated"):
        load(GatewaySettings, [flag, address])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--http", "8080"],
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


def test_limits_of_callers() -> None:
    default = CallerLimits(5, 6)
    assert load(GatewaySettings, []).limits(default) == default
    assert load(GatewaySettings, ["--max-running", "0", "--max-per-minute", "9"]).limits(default) == CallerLimits(0, 9)


def test_origins() -> None:
    origins = ["https://a.example", "http://[::1]:3000", "chrome-extension://abc", "null", "*"]
    told = [word for origin in origins for word in ("--cors-origin", origin)]
    assert load(GatewaySettings, told).cors_origin == told[1::2]
