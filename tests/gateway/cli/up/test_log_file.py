from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from gateway.cli.up.lock import LOCK_FILE
from gateway.cli.up.log_file import LOG, prepared, shorten

WRITES = """
import sys
from pathlib import Path
from gateway.cli.up.lock import LOCK_FILE
from gateway.cli.up.log_file import shorten
print("old " * 50)
shorten(Path(sys.argv[1]), 1000)
print("more", flush=True)
shorten(Path(sys.argv[1]), 100)
print("new", flush=True)
print("error", file=sys.stderr)
"""


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_at_a_start_a_long_one_is_set_aside(tmp_path: Path) -> None:
    log = prepared(tmp_path)
    assert log == tmp_path / LOG
    assert (mode(log), mode(log.parent)) == (0o600, 0o700)
    log.write_text("short")
    assert prepared(tmp_path).read_text() == "short"
    for text in ("one", "two"):
        log.write_text(text * (1 << 20))
        assert prepared(tmp_path).read_text() == ""
        assert log.with_suffix(".log.1").read_text() == text * (1 << 20)
        assert sorted(path.name for path in log.parent.iterdir()) == ["up.log", "up.log.1"]
        assert mode(log) == 0o600


def test_a_start_leaves_the_log_of_a_stack_that_runs(tmp_path: Path) -> None:
    log = prepared(tmp_path)
    log.write_text("one" * (1 << 20))
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            (tmp_path / LOCK_FILE).write_text(json.dumps({"pid": other.pid}))
            assert prepared(tmp_path).read_text() == "one" * (1 << 20)
        finally:
            other.kill()
    assert prepared(tmp_path).read_text() == ""


def test_what_runs_goes_on_in_a_new_one_and_loses_no_line(tmp_path: Path) -> None:
    log = prepared(tmp_path)
    with log.open("ab") as out:
        subprocess.run((sys.executable, "-c", WRITES, str(log)), stdout=out, stderr=out, check=True)
    assert log.with_suffix(".log.1").read_text() == f"{'old ' * 50}\nmore\n"
    assert log.read_text() == "new\nerror\n"
    assert mode(log) == 0o600


def test_a_file_of_the_process_goes_on_in_a_new_one(tmp_path: Path) -> None:
    """At a terminal the log is not a standard stream."""
    log = prepared(tmp_path)
    with log.open("a", encoding="utf-8") as file:
        file.write("old " * 50)
        file.flush()
        shorten(log, 100, file.fileno())
        file.write("new")
    assert log.with_suffix(".log.1").read_text() == "old " * 50
    assert log.read_text() == "new"
    assert mode(log) == 0o600


def test_the_log_of_another_process_is_left_to_it(tmp_path: Path) -> None:
    log = prepared(tmp_path)
    log.write_text("another's " * 100)
    written = subprocess.run((sys.executable, "-c", WRITES, str(log)), capture_output=True, text=True, check=True)
    assert written.stdout == f"{'old ' * 50}\nmore\nnew\n"
    assert log.read_text() == "another's " * 100
    assert not log.with_suffix(".log.1").exists()
