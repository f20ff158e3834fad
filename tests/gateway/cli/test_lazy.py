"""Commands that are imported when they are used."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from gateway.cli.agents import agents
from gateway.cli.lazy import LazyGroup
from gateway.cli.main import main


@pytest.mark.parametrize("group", [main, agents])
def test_the_overview_says_what_the_commands_say(group: LazyGroup) -> None:
    assert group.lazy
    context = click.Context(group)
    for name, lazy in group.lazy.items():
        command = group.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert lazy.summary == command.get_short_help_str(limit=200)


def test_all_commands_are_in_the_overview() -> None:
    overview = CliRunner().invoke(agents, ["--help"]).output
    assert [name for name in ("delete", "export", "import", "list") if f"  {name} " not in overview] == []


def test_the_overview_imports_no_command() -> None:
    program = (
        "import sys\nfrom gateway.cli.main import main\nmain(['--help'], standalone_mode=False)\n"
        "print([name for name in sys.modules if name == 'grpc' or name.startswith('gateway.cli.up')])"
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
