"""The type checker Pyright, out of its npm package; it runs by Node.js, and needs nothing else."""

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks.packages import Tarball, Unavailable, kept

VERSION = "1.1.414"
_PACKAGE = Tarball(
    "pyright", VERSION, "FPZZb51jepDX4eP7TEYDeNFtmE3WgwkkEcJpvH3/QmUSsj0EAy3LXu+xB4T/FWDejtsXlCfFr/rbWFjwuwuXww=="
)


def problems(program: Path, scratch: Path) -> list[str]:
    """Return strict mode's problems in a file, as `LINE: message`. Skips the test without pyright.

    The file is copied to `scratch`, so that it is a user's: what it imports is installed in this environment. A
    `type: ignore` that nothing needs is a problem, too.
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node in PATH; install Node.js")
    try:
        package = kept("pyright", VERSION, _unpacked)
    except Unavailable as problem:
        pytest.skip(f"pyright: {problem}")
    shutil.copy(program, scratch)
    settings = {
        "include": [program.name],
        "typeCheckingMode": "strict",
        "pythonVersion": f"{sys.version_info.major}.{sys.version_info.minor}",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (scratch / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [node, str(package / "index.js"), "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False, timeout=280)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    return [f"{each['range']['start']['line'] + 1}: {each['message']}" for each in report["generalDiagnostics"]]


def _unpacked(scratch: Path) -> Path:
    with tarfile.open(_PACKAGE.fetch(scratch)) as archive:
        archive.extractall(scratch, filter="data")
    return scratch / "package"
