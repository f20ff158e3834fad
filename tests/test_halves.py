"""The halves of the slowest tests that commits take turns at (TEST_HALF)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SLOW, FAST = "tests/inference_service/pool/test_admission.py", "tests/agentmem/test_errors.py"


def collected(half: str) -> set[str]:
    """The tests of both files that are run."""
    command = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", SLOW, FAST)
    known = {name: value for name, value in os.environ.items() if name != "AGENTMEM_FULL_MATRIX"}
    done = subprocess.run(
        command,
        env={**known, "TEST_HALF": half},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_both_halves_are_all_and_what_is_fast_is_in_each() -> None:
    every, first, second = (collected(half) for half in ("", "0", "1"))
    fast = {test for test in every if test.startswith(FAST)}
    assert first | second == every
    assert first & second == fast
    assert fast and all(half - fast for half in (first, second))
