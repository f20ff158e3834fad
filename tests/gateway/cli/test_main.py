"""Groups of commands, and the commands that are other programs."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gateway.cli import main as module
from gateway.cli.agents import agents
from gateway.cli.lazy import LazyGroup
from gateway.cli.main import main


@pytest.mark.parametrize("package", ["no_such_benchmarks", "email"])
def test_an_installed_package_has_no_benchmarks(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setattr(module, "BENCHMARKS", package)
    ended = CliRunner().invoke(main, ["bench", "ttft"])
    assert ended.exit_code == 2
    assert "come with a checkout" in ended.output


def test_its_status_is_the_benchmark_s() -> None:
    command = [sys.executable, "-m", "gateway.cli.main", "bench", "speed"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "there is no benchmark 'speed'" in ended.stderr


def agentmem(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_help_names_its_commands() -> None:
    for arguments in (("store",), ("store", "--help")):
        told = agentmem(*arguments)
        assert told.returncode == 0 and "check" in told.stdout and "du" in told.stdout


def test_status_and_words_are_the_stores(tmp_path: Path) -> None:
    told = agentmem("store", "check", str(tmp_path), "--json")
    assert told.returncode == 2 and "no store.db" in told.stderr and told.stdout == ""


@pytest.mark.parametrize("group", [main, agents])
def test_the_overview_says_what_the_commands_say(group: LazyGroup) -> None:
    assert group.lazy
    context = click.Context(group)
    for name in group.lazy:
        command = group.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert group.summary(name) == command.get_short_help_str(limit=120)


def test_all_commands_are_in_the_overview() -> None:
    overview = CliRunner().invoke(agents, ["--help"]).output
    assert [name for name in ("delete", "export", "import", "list") if f"  {name} " not in overview] == []


def test_the_overview_imports_no_command() -> None:
    program = (
        "import sys\nfrom gateway.cli.main import main\nmain(['--help'], standalone_mode=False)\n"
        "print([name for name in sys.modules if name == 'grpc' or name.startswith('gateway.cli.up.command')])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("given", "meant"), [(["caht"], "'chat'"), (["agents", "exprot"], "'export'"), (["modles", "list"], "'models'")]
)
def test_a_slip_is_answered_with_what_was_meant(given: list[str], meant: str) -> None:
    said = CliRunner().invoke(main, given)
    assert said.exit_code == 2
    assert f"Did you mean {meant}?" in said.output
    assert "Did you mean" not in CliRunner().invoke(main, ["zzz"]).output


def test_a_client_imports_nothing_of_the_services() -> None:
    """Each of these takes as long to import as all that a small command needs."""
    slow = ("numpy", "prometheus_client", "pydantic_settings", "starlette")
    program = f"import sys, gateway.cli.agents\nprint([name for name in {slow} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
