"""An environment of frameworks that hold OpenAI's SDK back, so that they cannot be where the tests run.

It has what uv.lock says of the dependency group `older-frameworks`, with its checksums, and is made once for each user.
"""

import functools
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.packages import Unavailable, kept

_UV = Path(sys.executable).parent / "uv"
_ROOT = Path(__file__).parents[1]


def interpreter() -> Path:
    """The environment's Python. Skips the test where it cannot be made, and says why."""
    found = _made()
    if isinstance(found, str):
        pytest.skip(f"the frameworks of the group older-frameworks: {found}")
    return found / "bin" / "python"


@functools.cache
def _made() -> Path | str:
    """Where the environment is, or why it is not."""
    try:
        group = ("--frozen", "--only-group", "older-frameworks", "--no-emit-project", "--no-header")
        wanted = _uv(_ROOT, "export", *group, "--format", "requirements-txt")
        name = hashlib.sha256(f"{sys.version}\n{wanted}".encode()).hexdigest()[:16]
        return kept("frameworks", name, functools.partial(_install, wanted))
    except Unavailable as problem:
        return str(problem)


def _install(wanted: str, scratch: Path) -> Path:
    """An environment with those packages."""
    environment, list_of_them = scratch / "environment", scratch / "requirements.txt"
    list_of_them.write_text(wanted)
    # In there the settings of the project do not hold, whose constraints have no checksums.
    _uv(scratch, "venv", "--relocatable", "--python", sys.executable, str(environment))
    python = ("--python", str(environment / "bin" / "python"), "--compile-bytecode")
    _uv(scratch, "pip", "install", *python, "--require-hashes", "--requirements", str(list_of_them))
    return environment


def _uv(folder: Path, *arguments: str) -> str:
    """What uv prints."""
    try:
        command = (str(_UV), "--quiet", *arguments)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Unavailable(f"uv {arguments[0]}: {problem}") from problem
    if done.returncode:
        raise Unavailable(f"uv {' '.join(arguments)} failed: {done.stderr.strip()[-500:]}")
    return done.stdout
