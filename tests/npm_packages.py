"""Packages of npm that a folder's package.json and package-lock.json pin, installed once for each user."""

import functools
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from benchmarks.packages import Unavailable, kept, run

_FILES = ("package.json", "package-lock.json")


def installed(folder: Path) -> Path:
    """Return the node_modules of a folder's packages. Skips the test where npm cannot install them, and says why."""
    found = _installed(folder)
    if isinstance(found, str):
        pytest.skip(found)
    return found / "node_modules"


@functools.cache
def _installed(folder: Path) -> Path | str:
    digest = hashlib.sha256()
    for name in _FILES:
        digest.update((folder / name).read_bytes())
    try:
        return kept("npm-tools", f"{folder.parent.name}-{digest.hexdigest()[:16]}", functools.partial(_install, folder))
    except Unavailable as problem:
        return str(problem)


def _install(folder: Path, scratch: Path) -> Path:
    npm, made = shutil.which("npm"), scratch / "made"
    if npm is None or shutil.which("node") is None:
        raise Unavailable("no node and npm in PATH")
    made.mkdir()
    for name in _FILES:
        shutil.copy(folder / name, made)
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--cache", str(scratch / "cache"))
    # Not `ci`: some locks lack optional packages of other platforms.
    run([npm, "install", *quiet], made)
    wanted = json.loads((made / "package.json").read_text())
    for name in {**wanted["dependencies"], **wanted.get("optionalDependencies", {})}:
        if not (made / "node_modules" / name).exists():
            raise Unavailable(f"npm did not install {name}")
    return made
