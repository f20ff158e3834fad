"""`agentmem bench` where there are no benchmarks."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from gateway.cli import bench as module
from gateway.cli.main import main


@pytest.mark.parametrize("package", ["no_such_benchmarks", "email"])
def test_an_installed_package_has_no_benchmarks(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setattr(module, "PACKAGE", package)
    ended = CliRunner().invoke(main, ["bench", "ttft"])
    assert ended.exit_code == 2
    assert "come with a checkout" in ended.output


def test_its_status_is_the_benchmark_s() -> None:
    command = [sys.executable, "-m", "gateway.cli.main", "bench", "speed"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "there is no benchmark 'speed'" in ended.stderr
