import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gateway.cli.agents import agents
from gateway.cli.bench.command import bench
from gateway.cli.groups import Lazy, program
from gateway.cli.main import main
from gateway.cli.models import models


def test_an_installed_package_has_no_benchmarks() -> None:
    bench = program("bench", "", "email", needs=("email.__main__",), missing="the benchmarks come with a checkout")
    ended = CliRunner().invoke(bench, ["ttft"])
    assert ended.exit_code == 2
    assert "come with a checkout" in ended.output


@pytest.mark.parametrize("command", [program("c", "", "none", needs=("none.such",)), Lazy("c", "none.such:c", "")])
def test_a_package_that_is_missing_is_named(command: click.Command) -> None:
    ended = CliRunner().invoke(command, [])
    assert ended.exit_code == 1
    assert ended.output.startswith("Error: this needs the services' packages, of which none")


def test_its_status_is_the_benchmark_s() -> None:
    ended = agentmem("bench", "speed")
    assert ended.returncode == 2
    assert "there is no benchmark 'speed'" in ended.stderr


def agentmem(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_help_names_its_commands() -> None:
    told = agentmem("store", "--help")
    assert told.returncode == 0 and "check" in told.stdout and "du" in told.stdout


def test_status_and_words_are_the_stores(tmp_path: Path) -> None:
    told = agentmem("store", "check", str(tmp_path), "--json")
    assert told.returncode == 2 and "no store.db" in told.stderr and told.stdout == ""


@pytest.mark.parametrize("group", [main, agents, models, bench])
def test_all_commands_can_be_had(group: click.Group) -> None:
    for command in group.commands.values():
        assert isinstance(command.load() if isinstance(command, Lazy) else command, click.Command)
        assert command.get_short_help_str()


def test_options_without_a_command_are_of_the_list() -> None:
    assert "--all" in CliRunner().invoke(main, ["agents", "--all", "--help"]).output
    assert "Commands:" in CliRunner().invoke(main, ["agents", "--help"]).output


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
    slow = ("numpy", "prometheus_client", "pydantic", "starlette")
    commands = "gateway.cli.agents, gateway.cli.serving, gateway.cli.launch.command"
    program = f"import sys, {commands}\nprint([name for name in {slow} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


@pytest.mark.parametrize(
    ("words", "some"),
    [
        ("agentmem mo", {"models"}),
        ("agentmem models ", {"search", "pull", "load"}),
        ("agentmem agents ex", {"export"}),
        ("agentmem chat --mo", {"--model"}),
        ("agentmem up --no-u", {"--no-ui"}),
        ("agentmem doctor --off", {"--offline"}),
    ],
)
def test_commands_and_options_are_completed(words: str, some: set[str]) -> None:
    """As bash asks when Tab is pressed after the last of the words."""
    asked = {"_AGENTMEM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    said = CliRunner().invoke(main, prog_name="agentmem", env=asked)
    assert said.stderr == ""
    assert some <= {line.rpartition(",")[2] for line in said.stdout.splitlines()}
