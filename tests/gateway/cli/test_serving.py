"""What a chat finds on a gateway that runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentmem.console import Mistake
from gateway.cli.serving import _name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("demo", "demo"),
        ("org/model", "org/model"),
        ("mine=org/model", "mine"),
        ("/models/a=b", "a=b"),
        ("models/mine/", "mine"),
        ("~/models/mine/", "mine"),
    ],
)
def test_a_models_name_is_the_one_that_up_gives_it(given: str, name: str) -> None:
    assert _name(given) == name


def test_the_working_directory_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _name(".") == tmp_path.name
    with pytest.raises(Mistake, match="NAME="):
        _name("=x")


def test_it_needs_nothing_of_the_services() -> None:
    code = "import sys, gateway.cli.serving; assert 'pydantic' not in sys.modules"
    subprocess.run((sys.executable, "-c", code), check=True)
