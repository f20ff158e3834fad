"""Results of benchmarks that are stopped, by every signal that stops one."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.unfinished import kept_whole

SLOW = """
import sys, time
from pathlib import Path
import benchmarks.__main__ as bench
from benchmarks import results

place = Path(sys.argv[1])

def slow(name, **_):
    try:
        results.write(str(place / "old"), {})
        (place / "started").touch()
        time.sleep(60)
    finally:
        (place / "cleaned up").touch()

bench.runpy.run_module = slow
sys.exit(bench.main(["ttft"]))
"""


def measure(directory: Path, end: type[BaseException] | BaseException, *names: str) -> None:
    """A benchmark that writes results again and again, while another one writes beside it."""
    with kept_whole():
        for attempt in range(3):
            for name in names:
                results.write(str(directory / name), {"attempt": attempt})
        (directory / "beside.json").write_text("of another")
        raise end


def attempt(path: Path) -> int:
    return int(json.loads(path.read_text())["figures"]["attempt"])


@pytest.mark.parametrize("how", [KeyboardInterrupt, RuntimeError, SystemExit(2)])
def test_what_did_not_end_replaces_nothing(
    tmp_path: Path, how: type[BaseException] | BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.json").write_text("whole")
    (tmp_path / "beside.json").write_text("before")
    with pytest.raises(how if isinstance(how, type) else type(how)):
        measure(tmp_path, how, "old", "new")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"old.json", "beside.json", "old.json.unfinished", "new.json.unfinished"}
    assert (tmp_path / "old.json").read_text() == "whole"
    assert (tmp_path / "beside.json").read_text() == "of another"
    assert [attempt(tmp_path / f"{name}.json.unfinished") for name in ("old", "new")] == [2, 2]
    assert str(tmp_path / "new.json.unfinished") in capsys.readouterr().err


@pytest.mark.parametrize("status", [None, 0, 1])
def test_what_ended_stays(tmp_path: Path, status: int | None) -> None:
    (tmp_path / "old.json").write_text("old")
    with pytest.raises(SystemExit):
        measure(tmp_path, SystemExit(status), "old")
    assert {path.name for path in tmp_path.iterdir()} == {"old.json", "beside.json"}
    assert attempt(tmp_path / "old.json") == 2


def test_one_benchmark_after_the_other(tmp_path: Path) -> None:
    """What an earlier one in this process wrote is not the later one's."""
    with pytest.raises(SystemExit):
        measure(tmp_path, SystemExit(0), "old")
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, KeyboardInterrupt, "new")
    assert attempt(tmp_path / "old.json") == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_in_order_also_in_the_background(tmp_path: Path, number: signal.Signals) -> None:
    """A shell's background job ignores SIGINT; what it starts would, too."""
    (tmp_path / "old.json").write_text("whole")
    ignoring = [
        "sh",
        "-c",
        'trap "" INT; exec "$@"',
        "sh",
    ]  # Python's own way forks, which gRPC's threads do not survive
    program = subprocess.Popen(
        [*ignoring, sys.executable, "-c", SLOW, str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "started").exists():
        assert program.poll() is None
        time.sleep(0.02)
    program.send_signal(number)
    _, told = program.communicate(timeout=30)
    assert program.returncode == 130
    assert told.splitlines()[-1] == "stopped"
    assert (tmp_path / "cleaned up").exists()
    assert (tmp_path / "old.json").read_text() == "whole"
