from pathlib import Path

import pytest

from agentmem.console import Mistake
from agentmem.process.settings import CONFIG_VARIABLE, load
from gateway.cli.up.preflight import check
from gateway.cli.up.settings import UpSettings
from tests.gateway.cli.test_main import agentmem

DATA = ["--data", "./none-such"]


def refusal(*arguments: str) -> str:
    with pytest.raises(Mistake) as caught:
        check(load(UpSettings, [*DATA, *arguments]))
    return caught.value.format_message()


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("AGENTMEM_DATA", "AGENTMEM_DATA is read by nothing; did you mean AGENTMEM_UP_DATA?"),
        ("AGENTMEM_HTTP", "AGENTMEM_HTTP is read by nothing; did you mean AGENTMEM_UP_HTTP?"),
        ("AGENTMEM_OFLINE", "AGENTMEM_OFLINE is read by nothing; did you mean AGENTMEM_OFFLINE?"),
        ("AGENTMEM_CONFG", "AGENTMEM_CONFG is read by nothing; did you mean AGENTMEM_CONFIG?"),
        (
            "AGENTMEM_WROKER_POOL_BYTES",
            "AGENTMEM_WROKER_POOL_BYTES is read by nothing; did you mean AGENTMEM_WORKER_POOL_BYTES?",
        ),
        (
            "AGENTMEM_STORE_WARM_BYTE",
            "AGENTMEM_STORE_WARM_BYTE is not supported; did you mean AGENTMEM_STORE_WARM_BYTES?",
        ),
        (
            "AGENTMEM_WORKER_POOL_BITES",
            "AGENTMEM_WORKER_POOL_BITES is not supported; did you mean AGENTMEM_WORKER_POOL_BYTES?",
        ),
        ("AGENTMEM_STORE_WARM_BYTES", "AGENTMEM_STORE_WARM_BYTES: '?' is not a whole number"),
        ("AGENTMEM_WORKER_DTYPE", "AGENTMEM_WORKER_DTYPE: must be 'auto', 'float32', 'bfloat16' or 'float16'"),
        ("AGENTMEM_GATEWAY_ANONYMOUS", "anonymous: must be 'keep' or 'forget'"),
    ],
)
def test_variables_of_all_services_are_checked(variable: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "?")
    assert refusal() == said


def test_a_service_that_listens_elsewhere_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_STORE_LISTEN", "unix:/tmp/x.sock")
    run = Path("none-such/run").absolute()
    said = f"`agentmem up` gives it unix:{run}/store.sock; leave it out, or set --run-dir"
    assert refusal() == f"listen of the store: {said}"


def test_tables_of_all_services_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[worker]\npool-bites = 1\n")
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    assert refusal() == f"{file}:2:1: worker.pool-bites: is not supported; did you mean pool-bytes?"


@pytest.mark.parametrize("variable", ["AGENTMEM_PORT", "AGENTMEM_SERVICE_HOST", "AGENTMEM_MODEL", "AGENTMEM_TLS"])
def test_variables_of_clients_and_of_kubernetes_are_left_alone(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "tcp://10.0.0.1:80")
    check(load(UpSettings, DATA))


def test_the_command_says_so_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_DATA", "/srv")
    ended = agentmem("up", *DATA)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)


def test_a_run_directory_that_is_too_long(tmp_path: Path) -> None:
    assert "over 10" in refusal("--run-dir", str(tmp_path / ("d" * 100)))
    assert refusal("--run-dir", "r" * 200).endswith("choose a shorter one")
