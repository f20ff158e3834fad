from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentmem.distribution import install
from agentmem.process import otlp
from agentmem.process.settings import SettingsError

HERE = "http://127.0.0.1:4317"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def _nobody_elses_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("setting", "environment", "target"),
    [
        ("", {}, ""),
        (HERE, {}, HERE),
        ("", {ENDPOINT: "http://collector:4317/"}, "http://collector:4317"),
        ("", {ENDPOINT: "https://collector"}, "https://collector:443"),
        ("", {ENDPOINT: HERE, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "[::1]:9"}, "http://[::1]:9"),
        (HERE, {ENDPOINT: "http://collector:1"}, HERE),
        (HERE, {"OTEL_SDK_DISABLED": "true"}, ""),
        ("", {ENDPOINT: HERE, "OTEL_TRACES_EXPORTER": "none"}, ""),
        (HERE, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, HERE),
    ],
)
def test_where_traces_go(
    setting: str, environment: dict[str, str], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert otlp.check(setting) == target


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({ENDPOINT: "collector"}, f"{ENDPOINT}: 'collector' is not HOST:PORT of a collector"),
        ({ENDPOINT: "http://c:4318/v1/traces"}, "OTLP over gRPC has no path such as /v1/traces"),
        (
            {ENDPOINT: HERE, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            "ask for 'http/protobuf'; set OTEL",
        ),
        ({ENDPOINT: HERE, "OTEL_EXPORTER_OTLP_CERTIFICATE": "/no/such.pem"}, "/no/such.pem cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(environment: dict[str, str], problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as refused:
        otlp.check("")
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_EXPORTER_OTLP_COMPRESSION", "zip"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")]
)
def test_a_variable_that_opentelemetry_refuses(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"OTEL_….*{value}"):
        otlp.Traces("test", HERE)


WITHOUT = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
from cache_service.__main__ import main
main(sys.argv[1:])
"""
OFF = """
import sys
import cache_service.process, gateway.app, gateway.cli.main, inference_service.process, inference_service.settings
from agentmem.process.otlp import Traces
Traces("store", "").stop()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""


def python(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    environment = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_a_missing_extra_is_refused_at_start(by: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    flags = ["--otlp", "127.0.0.1:4317"] if by == "flag" else []
    ended = python(WITHOUT, "--data", str(data), *flags, **({} if flags else {ENDPOINT: HERE}))
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"agentmem-store: {'otlp' if flags else ENDPOINT}: traces need OpenTelemetry")
    assert install("otel") in ended.stderr
    assert not data.exists()


@pytest.mark.slow
def test_off_is_as_if_it_were_not_there() -> None:
    ended = python(OFF)
    assert (ended.returncode, ended.stderr) == (0, "")
