"""Kernels that g++ compiled are kept for each user: to compile one takes ten times as long as to run it in a test.

A file is named by all that decides what is in it: the code, the headers that stand for the GPU, the flags and the
compiler. So a kernel that has changed is compiled, and one that has not never again, in any checkout.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from benchmarks.user_cache import NoCache, user_cache
from tests import costs

_UNUSED_SECONDS = 30 * 86_400.0
"""After so long without use a file is removed."""


class CompiledKernels:
    """Compiles code that includes `header`, in `directory`. What comes of it stays there where no cache can be had."""

    def __init__(self, directory: Path, header: Path, flags: Sequence[str]) -> None:
        self._directory = directory
        self._header = header
        self._flags = tuple(flags)
        self._prepared = False
        self._kept = _folder() or directory

    def file(self, code: str) -> Path:
        """Return the shared library. Raises RuntimeError with g++'s message."""
        headers = (header.read_text() for header in sorted(self._header.parent.glob("*.h")))
        parts = (_compiler(), *self._flags, self._header.name, *headers, code)
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
        kept = self._kept / digest
        try:
            os.utime(kept)
        except FileNotFoundError:
            with costs.kept():
                self._compile(code, kept)
        return kept

    def _compile(self, code: str, kept: Path) -> None:
        if not self._prepared:
            self._compile_header()
        source = self._directory / f"{kept.name}.cpp"
        source.write_text(code)
        made = kept.with_suffix(f".{os.getpid()}")
        try:
            self._run("-shared", str(source), "-o", str(made))
            made.rename(kept)
        finally:
            made.unlink(missing_ok=True)

    def _compile_header(self) -> None:
        """Where g++ looks for it first: half of what a kernel takes is the standard library's headers."""
        copied = Path(shutil.copy(self._header, self._directory))
        self._run("-w", "-x", "c++-header", str(copied), "-o", f"{copied}.gch")
        self._prepared = True

    def _run(self, *arguments: str) -> None:
        command = ["g++", *self._flags, f"-I{self._header.parent}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)


@cache
def _folder() -> Path | None:
    """The user's, without what nobody has used for long; None: there is none."""
    try:
        folder = user_cache("kernels-on-cpu")
    except NoCache:
        return None
    for file in folder.iterdir():
        try:
            if file.stat().st_mtime < time.time() - _UNUSED_SECONDS:
                file.unlink()
        except FileNotFoundError:  # another process removes it
            continue
    return folder


@cache
def _compiler() -> str:
    """g++ and its version, as it describes itself."""
    return subprocess.run(["g++", "-v"], capture_output=True, text=True, check=True).stderr
