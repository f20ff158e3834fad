import re
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli.doctor import doctor
from gateway.cli.main import main
from gateway.cli.up.command import up
from gateway.cli.up.settings import up_settings


def given(words: str) -> dict[str, Any]:
    """Return the settings that the command takes from a command line, but defaults."""
    params = up.make_context("up", words.split()).params
    settings = up_settings(params)
    return {name: getattr(settings, name) for name, value in params.items() if value not in (None, ())}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("demo", {"model": ["demo"]}),
        ("org/a org/b --model c=org/c", {"model": ["org/a", "org/b", "c=org/c"]}),
        ("-m org/a --model org/b", {"model": ["org/b", "org/a"]}),
        ("--http 8080", {"http": "127.0.0.1:8080"}),
        ("--grpc 50052 --metrics 0", {"grpc": "127.0.0.1:50052", "metrics": "127.0.0.1:0"}),
        ("--port 8000", {"http": "127.0.0.1:8000"}),
        ("--host localhost", {"http": "localhost:8080"}),
        ("--host ::1 --port=8000", {"http": "[::1]:8000"}),
        ("--host [::1]", {"http": "[::1]:8080"}),
        ("--ctx-size 4096", {"context_length": 4096}),
        ("--max-model-len 4096", {"context_length": 4096}),
        ("-c 4096", {"context_length": 4096}),
        ("--context-length 4096", {"context_length": 4096}),
        ("", {}),
    ],
)
def test_flags_of_others_are_settings(typed: str, meant: dict[str, object]) -> None:
    assert given(typed) == meant


@pytest.mark.parametrize("command", [up, doctor])
def test_help_is_in_groups_with_everyday_flags_first(command: Any) -> None:
    told = CliRunner().invoke(main, [command.name, "--help"]).output
    headings = re.findall(r"^(\w.*):$", told, re.MULTILINE)
    assert headings[0] == "Everyday" and headings[-1] == "Other"
    flags = re.findall(r"^  (--[\w-]+)", told.partition("\nEveryday:")[2], re.MULTILINE)
    shown = {each.opts[0] for each in command.params if each.opts[0].startswith("--") and not each.hidden}
    assert flags[0] == "--model" and sorted({*flags} - {"--help"}) == sorted(shown)
    other = told.partition("\nOther:")[2]
    assert not {"--node", "--otlp", "--model"} & {*re.findall(r"--[\w-]+", other)}, "each has a group"
