from __future__ import annotations

import pytest
from click.testing import CliRunner

from gateway.cli.main import main


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
def test_commands_and_options(words: str, some: set[str]) -> None:
    """As bash asks when Tab is pressed after the last of the words."""
    asked = {"_AGENTMEM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    said = CliRunner().invoke(main, prog_name="agentmem", env=asked)
    assert said.stderr == ""
    assert some <= {line.rpartition(",")[2] for line in said.stdout.splitlines()}
