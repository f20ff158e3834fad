from pathlib import Path

import pytest

from agentmem.settings import SettingsError, load
from gateway.settings import GatewaySettings


def test_worker_is_in_the_run_directory(tmp_path: Path) -> None:
    assert load(GatewaySettings, ["--run-dir", str(tmp_path)]).worker_target == f"unix:{tmp_path}/worker.sock"
    assert load(GatewaySettings, ["--worker", "localhost:1"]).worker_target == "localhost:1"


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_GATEWAY_STALL_LIMIT", "2.5")
    assert load(GatewaySettings, []).stall_limit == 2.5


@pytest.mark.parametrize("flag", ["--http", "--grpc", "--metrics"])
@pytest.mark.parametrize("address", ["0.0.0.0:80", "[::]:80", "192.168.0.1:80", "example.org:80"])
def test_only_loopback(flag: str, address: str) -> None:
    with pytest.raises(SettingsError, match="not authenticated"):
        load(GatewaySettings, [flag, address])


@pytest.mark.parametrize(
    "arguments", [["--http", "8080"], ["--namespace", ""], ["--namespace", "x" * 257], ["--stall-limit", "0"]]
)
def test_refused(arguments: list[str]) -> None:
    with pytest.raises(SettingsError, match=arguments[0].strip("-").replace("-", "_")):
        load(GatewaySettings, arguments)
