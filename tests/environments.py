"""Environments for packages that cannot be where the tests run, made once for each user.

They hold dependencies back that the tests need newer.
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
_AS_OF = "2026-11-27"
"""Newer packages are not taken where no lock says which ones are."""


def older_frameworks() -> Path:
    """Return the Python that has the dependency group `older-frameworks`, as uv.lock and its checksums have it.

    Skips the test where that cannot be made, and says why. So does `holding`.
    """
    return _interpreter("")


def holding(requirement: str) -> Path:
    """Return a Python that has a package, named as `pip install` takes it, and what it needs."""
    return _interpreter(requirement)


def _interpreter(requirement: str) -> Path:
    found = _made(requirement)
    if isinstance(found, str):
        pytest.skip(f"{requirement or 'the frameworks of the group older-frameworks'}: {found}")
    return found / "bin" / "python"


@functools.cache
def _made(requirement: str) -> Path | str:
    """Return where the environment is, or why it is not."""
    try:
        if requirement:
            return _kept(requirement, "--exclude-newer", _AS_OF)
        group = ("--frozen", "--only-group", "older-frameworks", "--no-emit-project", "--no-header")
        return _kept(_uv(_ROOT, "export", *group, "--format", "requirements-txt"), "--require-hashes")
    except Unavailable as problem:
        return str(problem)


def _kept(requirements: str, *options: str) -> Path:
    name = hashlib.sha256("\n".join((sys.version, requirements, *options)).encode()).hexdigest()[:16]
    return kept("frameworks", name, functools.partial(_install, requirements, options))


def _install(requirements: str, options: tuple[str, ...], scratch: Path) -> Path:
    environment, list_of_them = scratch / "environment", scratch / "requirements.txt"
    list_of_them.write_text(requirements)
    # In there the settings of the project do not hold, whose constraints have no checksums.
    _uv(scratch, "venv", "--relocatable", "--python", sys.executable, str(environment))
    python = ("--python", str(environment / "bin" / "python"), "--compile-bytecode")
    _uv(scratch, "pip", "install", *python, *options, "--requirements", str(list_of_them))
    return environment


def _uv(folder: Path, *arguments: str) -> str:
    """Return what uv prints."""
    try:
        command = (str(_UV), "--quiet", *arguments)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Unavailable(f"uv {arguments[0]}: {problem}") from problem
    if done.returncode:
        raise Unavailable(f"uv {' '.join(arguments)} failed: {done.stderr.strip()[-500:]}")
    return done.stdout
