import click
import pytest
from click.testing import CliRunner

from agentmem.commands import Commands


@click.group(cls=Commands)
def main() -> None:
    pass


@main.command()
@click.argument("name")
@click.option("--limit", type=int)
def show(name: str, limit: int | None) -> None:
    raise click.UsageError(f"{name}, {limit}")


@main.group()
def more() -> None:
    pass


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("shwo", "No such command 'shwo'. Did you mean 'show'? `am --help` says more."),
        ("--frob show", "No such option '--frob'. `am --help` says more."),
        ("show", "Missing argument 'NAME'. `am show --help` says more."),
        ("show x --limt 3", "No such option '--limt'. Did you mean '--limit'? `am show --help` says more."),
        ("show x y", "Got unexpected extra argument (y). `am show --help` says more."),
        ("show x --limit 3", "x, 3. `am show --help` says more."),
    ],
)
def test_a_mistake_is_a_line(typed: str, said: str) -> None:
    ended = CliRunner().invoke(main, typed.split(), prog_name="am")
    assert (ended.exit_code, ended.output) == (2, f"Error: {said}\n")


def test_a_group_without_a_command_shows_its_help() -> None:
    assert CliRunner().invoke(main, ["more"], prog_name="am").output.startswith("Usage: am more")
