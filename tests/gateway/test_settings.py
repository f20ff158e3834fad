import pytest

from agentmem.process.settings import SettingsError, load
from gateway.settings import GatewaySettings


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
