"""Results of benchmarks that are stopped, by every signal that stops one."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.unfinished import kept_whole

SLOW = """
import sys, time
from pathlib import Path
import benchmarks.__main__ as bench
import benchmarks.unfinished as unfinished

place = Path(sys.argv[1])
unfinished.kept_whole.__wrapped__.__defaults__ = (place,)

def slow(name, **_):
    try:
        (place / "old.json").write_text("half")
        (place / "started").touch()
        time.sleep(60)
    finally:
        (place / "cleaned up").touch()

bench.runpy.run_module = slow
sys.exit(bench.main(["ttft"]))
"""


def measure(directory: Path, end: type[BaseException] | BaseException, written: dict[str, str]) -> None:
    with kept_whole(directory):
        for name, text in written.items():
            (directory / name).write_text(text)
        raise end


@pytest.mark.parametrize("how", [KeyboardInterrupt, RuntimeError, SystemExit(2)])
def test_what_did_not_end_replaces_nothing(
    tmp_path: Path, how: type[BaseException] | BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.json").write_text("whole")
    (tmp_path / "other.json").write_text("other")
    with pytest.raises(how if isinstance(how, type) else type(how)):
        measure(tmp_path, how, {"old.json": "half", "new.json": "new"})
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    aside = {"old.json.unfinished": "half", "new.json.unfinished": "new"}
    assert found == {"old.json": "whole", "other.json": "other", **aside}
    assert str(tmp_path / "new.json.unfinished") in capsys.readouterr().err


@pytest.mark.parametrize("status", [None, 0, 1])
def test_what_ended_stays(tmp_path: Path, status: int | None) -> None:
    (tmp_path / "old.json").write_text("old")
    with pytest.raises(SystemExit):
        measure(tmp_path, SystemExit(status), {"old.json": "new"})
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old.json", "new")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_in_order_also_in_the_background(tmp_path: Path, number: signal.Signals) -> None:
    """A shell's background job ignores SIGINT; what it starts would, too."""
    (tmp_path / "old.json").write_text("whole")
    program = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
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
