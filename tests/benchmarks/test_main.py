"""The benchmarks' own command line."""

import subprocess
import sys

import pytest

from benchmarks.__main__ import NAMES, main, summary


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_says_what_it_measures(name: str) -> None:
    assert summary(NAMES[name]).endswith((".", ":"))
    assert summary(NAMES[name])[0].isupper()


def test_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert [name for name in NAMES if f"  {name} " not in shown] == []


def test_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed"]) == 2
    assert "the names are: " in capsys.readouterr().err


def test_through_the_command() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "gateway.cli.main", "bench", "transfer", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.startswith("usage: agentmem bench transfer ")
