"""Files out of public packages: kept once, refused where they are not what is pinned."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.packages import Tarball, Unavailable, Wheel, kept
from benchmarks.quality.texts import DIALOGUE, MANUAL

PACKAGES: dict[str, Wheel | Tarball] = {"pip": DIALOGUE.package, "npm": MANUAL.package}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_made_is_kept(cache: Path) -> None:
    made: list[Path] = []

    def make(scratch: Path) -> Path:
        made.append(scratch)
        (scratch / "files").mkdir()
        (scratch / "files" / "a").write_text("1")
        (scratch / "rest").write_text("2")
        return scratch / "files"

    first, second = kept("things", "v1", make), kept("things", "v1", make)
    assert first == second == cache / "agentmem" / "things" / "v1"
    assert [path.name for path in first.iterdir()] == ["a"]
    assert len(made) == 1
    assert not made[0].exists()


def test_of_what_could_not_be_made_nothing_is_kept(cache: Path) -> None:
    def make(scratch: Path) -> Path:
        (scratch / "half").mkdir()
        raise Unavailable("no network")

    with pytest.raises(Unavailable, match="no network"):
        kept("things", "v1", make)
    assert [path.name for path in (cache / "agentmem" / "things").iterdir()] == ["lock"]


def test_processes_that_come_together_make_it_once(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from benchmarks.packages import kept\n"
        "def make(scratch):\n"
        "    Path(sys.argv[1], str(time.monotonic_ns())).touch()\n"
        "    time.sleep(0.3)\n"
        "    (scratch / 'files').mkdir()\n"
        "    return scratch / 'files'\n"
        "print(kept('things', 'v1', make))\n"
    )
    (tmp_path / "made").mkdir()
    command = [sys.executable, "-c", code, str(tmp_path / "made")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert len({process.communicate(timeout=60)[0] for process in both}) == 1
    assert len(list((tmp_path / "made").iterdir())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("client", PACKAGES)
def test_a_package_is_what_was_pinned_or_nothing(client: str, tmp_path: Path) -> None:
    package = PACKAGES[client]
    try:
        file = package.fetch(tmp_path)
    except Unavailable as problem:
        pytest.skip(str(problem))
    assert file.exists()
    (again := tmp_path / "again").mkdir()
    checksum = "sha256" if isinstance(package, Wheel) else "sha512"
    other = replace(package, **{checksum: "0" * 64})
    with pytest.raises(Unavailable, match=f"{package.name}.* has the checksum .*, not 0000"):
        other.fetch(again)
