"""`make setup` with a Python that cannot have Agentmem's packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .commands import ROOT

FAKE = """#!/bin/sh
[ "$1" = -c ] || exit 99
exec {python} -c 'import platform, sys
sys.version_info, sys.platform, platform.machine = {version}, "{system}", lambda: "{machine}"
platform.python_version = lambda: ".".join(map(str, sys.version_info))
exec(sys.argv[1])' "$2"
"""
MAC = (
    r"Agentmem needs Python 3.11 or newer, for arm64, and \S+ is {} for {}: make PYTHON=python3.12, which brew install "
)


def setup(folder: Path, version: tuple[int, int, int], system: str, machine: str) -> str:
    """Run it in a copy of the checkout, with a python3 that says so and makes no environment."""
    if shutil.which("make") is None:
        pytest.skip("no make")
    for name in ("Makefile", "pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / name, folder)
    (folder / "bin").mkdir()
    python = folder / "bin" / "python3"
    python.write_text(FAKE.format(python=sys.executable, version=version, system=system, machine=machine))
    python.chmod(0o755)
    outer = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of `make test`
    environment = {**outer, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["make", "setup"], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode
    assert not (folder / ".venv").exists()
    return done.stderr


@pytest.mark.parametrize(("version", "machine"), [((3, 9, 6), "arm64"), ((3, 12, 1), "x86_64")])
def test_it_is_refused_in_one_line(version: tuple[int, int, int], machine: str, tmp_path: Path) -> None:
    said = setup(tmp_path, version, "darwin", machine)
    line, *rest = said.splitlines()
    assert re.match(MAC.format(".".join(map(str, version)), machine), line)
    assert all(each.startswith("make: ") for each in rest)


@pytest.mark.parametrize(
    ("version", "system", "machine"), [((3, 11, 0), "darwin", "arm64"), ((3, 11, 0), "linux", "x86_64")]
)
def test_others_make_the_environment(version: tuple[int, int, int], system: str, machine: str, tmp_path: Path) -> None:
    assert "needs Python" not in setup(tmp_path, version, system, machine)
