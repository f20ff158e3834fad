"""The tests of every commit have a case of every guarantee, and few cases that cost much."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUARANTEES = ROOT / "docs" / "concepts" / "guarantees.md"
MOST_ESSENTIAL = 17


@pytest.mark.essential("what this tier promises")
def test_every_guarantee_has_a_case_at_every_commit() -> None:
    guarantees = re.findall(r"^- \*\*(.+?)\.\*\*((?:.|\n)*?)(?=^- |\Z)", GUARANTEES.read_text(), re.MULTILINE)
    assert len(guarantees) > 10
    named = {name: re.findall(r"`(tests/[\w/]+(?:\.py|/))`", text) for name, text in guarantees}
    command = (sys.executable, "-m", "pytest", "--collect-only", "-q", "--quick", "-p", "no:cacheprovider")
    places = sorted({place for found in named.values() for place in found})
    listed = subprocess.run((*command, *places), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [name for name, places in named.items() if not any(f"{place}" in listed for place in places)] == []


def test_few_cases_are_essential() -> None:
    tests = (file.read_text() for file in (ROOT / "tests").rglob("test_*.py") if file != Path(__file__))
    reasons = [reason for test in tests for reason in re.findall(r"^@pytest\.mark\.essential\((.*)\)$", test, re.M)]
    assert 0 < len(reasons) <= MOST_ESSENTIAL, "make them cheaper, or run them at night"
    assert all(reasons)
