"""Packages of npm that a folder's package.json and package-lock.json pin, installed once for each user."""

import functools
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.packages import Unavailable, kept


def installed(folder: Path) -> Path:
    """Return a copy of `folder` with its node_modules. Skips the test where npm cannot make it, and says why."""
    found = _installed(folder)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@functools.cache
def _installed(folder: Path) -> Path | str:
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    try:
        return kept("npm-tools", f"{folder.parent.name}-{digest.hexdigest()[:16]}", functools.partial(_install, folder))
    except Unavailable as problem:
        return str(problem)


def _install(folder: Path, scratch: Path) -> Path:
    npm, made = shutil.which("npm"), scratch / "made"
    if npm is None or shutil.which("node") is None:
        raise Unavailable("no node and npm in PATH")
    shutil.copytree(folder, made)
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--cache", str(scratch / "cache"))
    # Not `ci`: some locks lack optional packages of other platforms.
    done = subprocess.run([npm, "install", *quiet], cwd=made, capture_output=True, text=True, check=False, timeout=800)
    if done.returncode:
        raise Unavailable(f"npm install failed: {done.stderr[-500:]}")
    return made
