"""Where the tests get a Chromium: from PATH, else out of the npm package @sparticuz/chromium, made for cloud functions.

That one is a headless shell without a user interface, with the libraries that it needs besides libc; on Linux, x86-64.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.packages import Tarball, Unavailable, kept

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
VARIABLE = "AGENTMEM_TEST_CHROMIUM"
"""Names another program, or is "npm" for that of the package."""
PACKAGE = Tarball(
    "@sparticuz/chromium",
    "147.0.0",
    "4ZKeAQQa8up2mt675qSitztLdbQrlf8BKdC5naeap+5Mv1OV1OlJdPoU+EJC/p5sQUJUQmN4r+q5+EhaaOUHpQ==",
)
_UNPACK = """
const fs = require('fs'), zlib = require('zlib'), [from, to] = process.argv.slice(1);
fs.writeFileSync(to, zlib.brotliDecompressSync(fs.readFileSync(from)), {mode: 0o755});
"""


class Chromium(NamedTuple):
    program: str
    arguments: Sequence[str] = ()
    environment: dict[str, str] | None = None


def chromium() -> Chromium:
    """The one to take. Raises Unavailable where there is none."""
    asked = os.environ.get(VARIABLE, "")
    found = asked if asked not in ("", "npm") else next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found and asked != "npm":
        return Chromium(found)
    try:
        folder = kept("npm-tools", f"chromium-{PACKAGE.version}", unpacked)
    except Unavailable as problem:
        names = ", ".join(PROGRAMS)
        raise Unavailable(f"none of {names} is in PATH; npm's is not to be had: {problem}") from problem
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder / "lib")}
    # It has no helper that could set up a sandbox.
    return Chromium(str(folder / "chromium"), ["--no-sandbox"], environment)


def unpacked(scratch: Path) -> Path:
    """A folder with the program and `lib`. Raises Unavailable."""
    node = shutil.which("node")
    if sys.platform != "linux" or platform.machine() != "x86_64" or node is None:
        raise Unavailable("it is for Linux on x86-64, and unpacked by Node.js")
    with tarfile.open(PACKAGE.fetch(scratch)) as archive:
        archive.extractall(scratch, filter="data")
    packed, made = scratch / "package" / "bin", scratch / "made"
    made.mkdir()
    for name, target in (("chromium", made / "chromium"), ("al2023.tar", scratch / "libraries.tar")):
        subprocess.run([node, "-e", _UNPACK, str(packed / f"{name}.br"), str(target)], check=True, timeout=120)
    with tarfile.open(scratch / "libraries.tar") as archive:
        archive.extractall(made, filter="data")
    return made
