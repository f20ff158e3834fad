"""The parts of a start, from what the services log."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.starts import PARTS, events, parts

STARTED = 1_700_000_000.0


def _line(second: float, message: str, service: str, **fields: str) -> dict[str, Any]:
    return {"time": f"2023-11-14T22:13:{20 + second:06.3f}+00:00", "message": message, "service": service, **fields}


LINES = [
    _line(1, "service started", "up", name="store"),
    _line(1.5, "ready", "store"),
    _line(1.25, "service started", "up", name="worker"),
    _line(1.5, "service started", "up", name="gateway"),
    _line(2, "listening", "gateway"),
    _line(4, "listening", "worker"),
    _line(7, "model loaded", "worker"),
]


def test_the_parts_of_a_start_are_all_of_it() -> None:
    found = parts(LINES, STARTED, STARTED + 9)
    expected = {"up": 1.25, "worker_imports": 2.75, "model": 3, "serving": 2}
    assert found == pytest.approx(expected)
    assert list(found) == list(PARTS)


@pytest.mark.parametrize("missing", [2, 5, 6])
def test_a_log_that_lacks_a_line(missing: int) -> None:
    with pytest.raises(RuntimeError, match="the log has no line"):
        parts([line for number, line in enumerate(LINES) if number != missing], STARTED, STARTED + 9)


def test_the_log_has_other_lines_too(tmp_path: Path) -> None:
    log = tmp_path / "up.log"
    log.write_text("".join(["store starting…\n", *(json.dumps(line) + "\n" for line in LINES), "Ready.\n", '{"ti']))
    assert events(log) == LINES
