import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentmem.console import Mistake
from agentmem.process.settings import load
from gateway.cli.up.preflight import check, check_ports
from gateway.cli.up.settings import UpSettings
from tests.agentmem.process.test_model_registry import adapter, written
from tests.certificates import of_node

ANY = ["--data", "./none-such", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--metrics", ""]


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def look(*arguments: str) -> None:
    settings = load(UpSettings, [*ANY, *arguments])
    check(settings)
    check_ports(settings)


def refusal(*arguments: str) -> str:
    with pytest.raises(Mistake) as caught:
        look(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("flag", ["--http", "--grpc"])
def test_a_port_that_is_taken_is_named_with_its_flag(flag: str, taken: int) -> None:
    said = refusal(flag, f"127.0.0.1:{taken}")
    assert said.startswith(f"{flag} 127.0.0.1:{taken}: cannot listen on 127.0.0.1:{taken}: Address already in use")
    assert refusal(flag, f"localhost:{taken}").startswith(f"{flag} localhost:{taken}: cannot listen")


@pytest.mark.parametrize("by", [0, 1, 2])
def test_metrics_take_three_ports(by: int, taken: int) -> None:
    said = refusal("--metrics", f"127.0.0.1:{taken - by}")
    assert said.startswith(f"--metrics 127.0.0.1:{taken - by} (takes three ports in a row")


def test_there_are_three_ports() -> None:
    assert refusal("--metrics", "127.0.0.1:65534").endswith("the port must be at most 65533")


def test_no_port_twice(taken: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said = refusal("--http", f"127.0.0.1:{port}", "--grpc", f"127.0.0.1:{port}")
    assert said == f"--grpc 127.0.0.1:{port}: port {port} is that of --http 127.0.0.1:{port}, too; choose another"


def test_the_registry_file_and_adapters_are_looked_at(tmp_path: Path) -> None:
    file = written(tmp_path, "[models.m]\nsource = 'demo'\nkv_bits = 7\n")
    assert refusal("--models", str(file)).startswith(f"{file}:3:1: models.m.kv_bits: must be ")
    assert refusal("--models", str(tmp_path / "none")).endswith("cannot be read: No such file or directory")
    assert refusal("--adapter", "m+x=/no") == "--adapter 'm+x=/no': 'm' is not registered; registered are demo"
    file.write_text("[models.m]\nsource = 'demo'\n")
    adapter(tmp_path / "lora")
    check(load(UpSettings, [*ANY, "--models", str(file), "--adapter", f"m+x={tmp_path}/lora", "--offline"]))


def test_a_directory_that_cannot_be_one() -> None:
    assert refusal("--data", "/dev/null").startswith("--data /dev/null cannot be used")


def test_files_of_the_doors_are_looked_at(tmp_path: Path) -> None:
    assert "agentmem keys create" in refusal("--keys", str(tmp_path / "k.json"))
    files = ["--tls-cert", str(tmp_path / "c.pem"), "--tls-key", str(tmp_path / "k.pem")]
    assert ": tls_cert: cannot be read" in refusal(*files)


def test_traces_that_could_not_go_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")
    assert "OTLP over gRPC" in refusal("--otlp", "127.0.0.1:4317")


def test_the_files_and_the_port_of_a_node(tmp_path: Path) -> None:
    tls = of_node(tmp_path / "tls", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        node = ["--cluster", "postgresql://db/x", "--node", "a", "--cluster-tls", str(tls), "--node-listen", address]
        busy = refusal(*node, "--advertise", address)
    assert busy.startswith(f"--node-listen {address}: cannot listen on {address}")
    look(*node[:-2], "--node-listen", "127.0.0.1:0", "--advertise", address)
    other = refusal(*node[:-2], "--advertise", "a.local:50061")
    assert other.startswith(f"{tls}/node.pem: cluster_tls: cannot be this node's")
    (tls / "node.pem").unlink()
    missing = refusal(*node[:-2], "--advertise", address)
    assert missing.startswith(f"{tls}/node.pem: cluster_tls: cannot be read")
