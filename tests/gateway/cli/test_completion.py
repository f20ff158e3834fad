from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPLETE = """
eval "$(_AGENTMEM_COMPLETE=bash_source agentmem)"
complete -p agentmem > /dev/null
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_agentmem_completion "$1"
printf '%s\\n' "${COMPREPLY[@]}"
"""
"""What bash does when Tab is pressed behind the last of the words."""


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
@pytest.mark.slow
def test_commands_and_options(words: str, some: set[str]) -> None:
    done = subprocess.run(
        ("bash", "--norc", "-c", COMPLETE, "bash", *words.split(" ")),
        capture_output=True, text=True, check=True, timeout=60,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.stderr == ""
    assert some <= {*done.stdout.splitlines()}
