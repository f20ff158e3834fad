"""Words after and before the names of benchmarks."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gateway.cli import groups
from gateway.cli.main import main


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--model", "nosuch/x", "machine"), "--model"),
        (("--json", "machine", "--help"), "--json"),
        (("--gateway", "h:1", "speed"), "--gateway"),
    ],
)
def test_an_option_before_a_name_is_refused(words: tuple[str, ...], option: str) -> None:
    ended = CliRunner().invoke(main, ["bench", *words])
    name = next(each for each in words if each in ("machine", "speed"))
    said = f"Error: {option} is of `agentmem bench` alone; options of '{name}' follow its name\n"
    assert (ended.exit_code, ended.stderr.replace("main bench", "agentmem bench")) == (2, said)


def test_a_name_without_a_checkout_is_refused_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_exists", lambda _: False)
    ended = CliRunner().invoke(main, ["bench", "nonsense"])
    assert ended.exit_code == 2 and "come with a checkout" in ended.stderr
    assert "`main bench --help` says more." in ended.stderr
