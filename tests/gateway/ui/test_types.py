"""The page's modules, checked by TypeScript's compiler: types are in comments, for browsers take them as they are."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from benchmarks.packages import Tarball, Unavailable, kept
from gateway.ui.files import STATIC

COMPILER = Tarball(
    "typescript",
    "6.0.3",
    "y2TvuxSZPDyQakkFRPZHKFm+KKVqIisdg9/CZwm9ftvKXLP8NRWj38/ODjNbr43SsoXqNuAisEf1GdCxqWcdBw==",
)


@pytest.fixture(scope="module")
def compiler() -> list[str]:
    """The compiler's command. Skips where there is no Node.js, or the package cannot be fetched."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node in PATH; install Node.js")

    def unpacked(scratch: Path) -> Path:
        with tarfile.open(COMPILER.fetch(scratch)) as archive:
            archive.extractall(scratch, filter="data")
        return scratch / "package"

    try:
        package = kept("npm-tools", f"typescript-{COMPILER.version}", unpacked)
    except Unavailable as problem:
        pytest.skip(f"TypeScript: {problem}")
    return [node, str(package / "lib" / "tsc.js")]


def checked(compiler: list[str], project: Path) -> str:
    done = subprocess.run([*compiler, "--project", str(project)], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_all_modules(compiler: list[str]) -> None:
    assert checked(compiler, STATIC.parent) == ""


@pytest.mark.slow
def test_it_finds_a_mistake(compiler: list[str], tmp_path: Path) -> None:
    shutil.copy(STATIC.parent / "tsconfig.json", tmp_path)
    shutil.copytree(STATIC, tmp_path / "static")
    module = tmp_path / "static" / "format.js"
    module.write_text(module.read_text() + "export const wrong = bytes('1');\n")
    assert "static/format.js" in checked(compiler, tmp_path)


def test_no_line_is_longer_than_in_python() -> None:
    ours = [path for path in STATIC.rglob("*.js") if "vendor" not in path.parts]
    assert [
        f"{path.relative_to(STATIC)}:{number}"
        for path in ours
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 120
    ] == []
