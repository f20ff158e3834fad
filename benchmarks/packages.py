"""Files out of public packages: fetched once for each user and pinned; nothing of them is run."""

import base64
import fcntl
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.user_cache import NoCache, user_cache

_SECONDS: Final = 600


class Unavailable(Exception):
    """Says why."""


@dataclass(frozen=True)
class Wheel:
    """A package of PyPI. `sha256` is its wheel's, in hex, as the index shows it."""

    name: str
    version: str
    sha256: str

    def fetch(self, into: Path) -> Path:
        """Raises Unavailable."""
        pinned = f"{self.name}=={self.version}"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        run([*pip, "--only-binary", ":all:", "--dest", str(into), pinned], into)
        [wheel] = into.glob("*.whl")
        _check(pinned, _digest(wheel, "sha256").hex(), self.sha256)
        return wheel


@dataclass(frozen=True)
class Tarball:
    """A package of npm. `sha512` is its tarball's, in base64, as the registry's "integrity" has it."""

    name: str
    version: str
    sha512: str

    def fetch(self, into: Path) -> Path:
        """Raises Unavailable."""
        npm = shutil.which("npm")
        if npm is None:
            raise Unavailable("no npm in PATH; install Node.js")
        pinned = f"{self.name}@{self.version}"
        retries = ["--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=2000"]
        run([npm, "pack", pinned, "--cache", str(into / "npm"), "--loglevel=error", *retries], into)
        [tarball] = into.glob("*.tgz")
        _check(pinned, base64.b64encode(_digest(tarball, "sha512")).decode(), self.sha512)
        return tarball

    def unpack(self, files: Iterable[str], into: Path) -> None:
        """Raises Unavailable."""
        with tempfile.TemporaryDirectory(dir=into) as scratch, tarfile.open(self.fetch(Path(scratch))) as archive:
            for file in files:
                content = archive.extractfile(f"package/{file}")
                assert content is not None
                (into / Path(file).name).write_bytes(content.read())


def kept(cache: str, name: str, make: Callable[[Path], Path]) -> Path:
    """Return a file or directory of the user's cache, made by `make` in an empty one. Raises Unavailable."""
    try:
        folder = user_cache(cache)
    except NoCache as problem:
        raise Unavailable(str(problem)) from problem
    found = folder / name
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                make(Path(scratch)).rename(found)
    return found


def run(command: list[str], into: Path) -> None:
    """Raises Unavailable."""
    shown = f"{Path(command[0]).name} {' '.join(command[1:])}"
    try:
        done = subprocess.run(command, cwd=into, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except subprocess.TimeoutExpired as problem:
        raise Unavailable(f"{shown} did not end within {_SECONDS} s") from problem
    if done.returncode:
        raise Unavailable(f"{shown} failed: {done.stderr.strip()[-500:] or done.returncode}")


def _digest(file: Path, algorithm: str) -> bytes:
    with file.open("rb") as content:
        return hashlib.file_digest(content, algorithm).digest()


def _check(package: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise Unavailable(f"{package} has the checksum {found}, not {wanted}")
