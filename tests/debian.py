"""Programs of Debian's packages for tests, where they are not in PATH: unpacked without root, once for each user."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path

from benchmarks.packages import Unavailable as Unavailable
from benchmarks.packages import kept

_APT_SECONDS = 120


def unpacked(name: str, *packages: str) -> Path:
    """Return where these packages are unpacked, one beside the other, kept under `name`. Raises Unavailable."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise Unavailable(f"no {name} in PATH, and no apt-get to fetch it; install it")
    return kept(name, "unpacked", partial(_unpack, name, packages))


def _unpack(name: str, packages: tuple[str, ...], scratch: Path) -> Path:
    """Fetch packages by the package lists that are there, or else by fresh ones, kept apart from the system's."""
    private = ["-o", f"Dir::State::Lists={scratch}/lists", "-o", f"Dir::Cache={scratch}/cache"]
    (scratch / "lists" / "partial").mkdir(parents=True)
    (scratch / "cache" / "archives" / "partial").mkdir(parents=True)
    if _apt(scratch, "download", *packages) is not None:
        for command in (("update",), ("download", *packages)):
            problem = _apt(scratch, *private, *command)
            if problem is not None:
                raise Unavailable(f"no {name} in PATH, and Debian's cannot be fetched: {problem}")
    for package in scratch.glob("*.deb"):
        subprocess.run(
            ["dpkg-deb", "-x", package, scratch / "x"], check=True, capture_output=True, timeout=_APT_SECONDS
        )
    return scratch / "x"


def _apt(folder: Path, *arguments: str) -> str | None:
    """Run apt-get there; its last words where it fails."""
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=", "-o", "Acquire::http::Timeout=20", *arguments]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_APT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} did not end"
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["apt-get failed"])[-1]
