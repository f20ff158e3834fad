"""The course with scenarios of its own; tests/system/test_bench_machine.py runs the real ones."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.bench.machine import course as course_module
from gateway.cli.bench.machine.children import Child, Failed
from gateway.cli.bench.machine.course import Course, Scenario
from gateway.cli.bench.machine.files import Files
from gateway.cli.bench.machine.page import page
from gateway.cli.bench.machine.plan import OURS, steps
from gateway.cli.bench.machine.scenarios import Known, Skipped
from gateway.cli.bench.machine.servers import Server, Stages
from gateway.cli.bench.machine.subject import subject
from gateway.cli.live_line import LiveLine
from tests.gateway.cli.bench.machine.test_page import whole


async def nothing(*_: object) -> None:
    pass


@pytest.fixture
def found() -> dict[str, Any]:
    return {**whole(), "model": {"name": "demo"}, "parts": []}


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: io.StringIO) -> Course:
    async def doctor(_: Course) -> dict[str, Any]:
        return {"findings": []}

    async def settled(*_: object) -> dict[str, Any]:
        return {"seconds": 0.0}

    described = {"context_length": 8192, "memory": {"pool_bytes": 1}}
    monkeypatch.setattr(Course, "_doctor", doctor)
    made = Course(subject("demo"), tmp_path, 60, LiveLine(said), Known(lambda doing: made.tell(doing)))
    monkeypatch.setattr(made.ours, "settle", settled)
    monkeypatch.setattr(made.ours, "described", lambda: described)
    return made


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


def take(monkeypatch: pytest.MonkeyPatch, scenarios: Mapping[str, Scenario]) -> None:
    parts = dict.fromkeys(("start", "first tokens", "answers", "work", "paced"), nothing)
    monkeypatch.setattr(course_module, "SCENARIOS", {**parts, **scenarios})


def outcomes(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    names = ("found", "error", "skipped")
    return [(part["server"], part["part"], next(name for name in names if name in part)) for part in found["parts"]]


async def test_an_error_in_one_part_is_its_result_and_the_others_go_on(
    course: Course, found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: io.StringIO
) -> None:
    async def broken(*_: object) -> None:
        raise KeyError("no such thing")

    async def late(*_: object) -> None:
        await asyncio.Event().wait()

    async def unwanted(*_: object) -> None:
        raise Skipped("too slow")

    monkeypatch.setattr(course_module, "_LEAST_SECONDS", 0.01)
    monkeypatch.setattr(course_module, "_SHARES", 0.0)
    take(monkeypatch, {"first tokens": broken, "answers": late, "work": unwanted})
    files = Files(tmp_path / "out", found, {})
    await course.run(found, files)
    kinds = {"first tokens": "error", "answers": "error", "work": "skipped"}
    assert outcomes(found) == [(step.server, step.part, kinds.get(step.part, "found")) for step in steps()]
    errors = {part["error"] for part in found["parts"] if "error" in part}
    assert any(each.startswith("KeyError: 'no such thing' (test_course.py:") for each in errors)
    assert any("not done after 0 s" in each for each in errors)
    assert json.loads(files.json.read_text())["parts"] == json.loads(json.dumps(found["parts"]))
    assert " 6 of 20  agentmem, work: skipped: too slow\n" in said.getvalue()


async def test_a_server_that_does_not_start_is_tried_again_in_the_next_round(
    course: Course, found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[str] = []

    async def start(server: Server, *_: object) -> None:
        starts.append(server.name)
        if server.name != OURS and len(starts) == 2:
            raise Failed("no kernel for it")

    take(monkeypatch, {"start": start})
    await course.run(found, Files(tmp_path / "out", found, {}))
    theirs = [part for part in found["parts"] if part["server"] == "mlx-lm"]
    assert [part["error"] for part in theirs if "error" in part] == ["no kernel for it"]
    assert {part.get("skipped") for part in theirs if part["round"] == 1} == {None, "mlx-lm was not started"}
    assert all("found" in part for part in found["parts"] if part["server"] != "mlx-lm" or part["round"] == 2)


async def test_files_are_written_before_a_part_that_stops_the_machine(
    course: Course, found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    async def looking(*_: object) -> None:
        seen.append(files.page.read_text())

    take(monkeypatch, {"paced": looking})
    files = Files(tmp_path / "out", found, {})
    await course.run(found, files)
    assert "**Not complete: agentmem, paced, round 1 was running when this was written.**" in seen[0]
    assert "Not complete" not in files.page.read_text()


async def test_who_stops_it_has_the_parts_until_then(
    course: Course, found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = asyncio.Event()

    async def waiting(_: Server, known: Known, share: float, into: dict[str, Any]) -> None:
        into["1"] = {"tokens_per_second": 12.5}
        known.tell("4 at once")
        working.set()
        await asyncio.Event().wait()

    take(monkeypatch, {"answers": waiting})
    running = asyncio.create_task(course.run(found, Files(tmp_path / "out", found, {})))
    await asyncio.wait_for(working.wait(), 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert found["parts"][-1]["error"] == "stopped by the user" and len(found["parts"]) == 5
    text = page(found)
    assert "| tokens/s, 1 agent | 12.5 |" in text
    assert "- agentmem, answers, 4 at once: error: stopped by the user" in text
    assert found["seconds"] > 0


async def test_what_was_measured_before_an_error_or_the_end_of_its_time_stays(
    course: Course, found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(server: Server, known: Known, share: float, into: dict[str, Any]) -> None:
        for length in ("1024", "4096"):
            into[length] = {"samples": [{"prompt": int(length), "cold": 2.0}], "notes": []}
        known.tell("16,384 tokens, 1 of 3")
        if server.name == OURS:
            raise Failed("no memory")
        await asyncio.Event().wait()

    monkeypatch.setattr(course_module, "_LEAST_SECONDS", 0.01)
    monkeypatch.setattr(course_module, "_SHARES", 0.0)
    take(monkeypatch, {"first tokens": breaks})
    files = Files(tmp_path / "out", found, {})
    await course.run(found, files)
    text = files.page.read_text()
    for length in ("1,024", "4,096"):
        assert f"| {length} tokens: TTFT | 2.00 s (2.00–2.00) | 2.00 s (2.00–2.00) | 1x |" in text
    assert "- agentmem, first tokens, 16,384 tokens, 1 of 3: error: no memory (in both rounds)" in text
    assert "- mlx-lm, first tokens, 16,384 tokens, 1 of 3: error: not done after 0 s" in text


def test_a_child_ends_with_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "parent_of.py").write_text(
        "import signal, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "import tempfile\nprint('started', child.pid, 'in', tempfile.gettempdir(), flush=True)\ntime.sleep(600)\n"
    )
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    child = Child(("parent_of",), 30, tmp_path / "log.txt", environment)
    while "started" not in child.tail():
        assert child.runs, child.tail()
    below = int(child.tail().split()[1])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gateway.cli.bench.machine.children._LEFT_SECONDS", 0.1)
        child.end()
        child.end()
    assert not child.runs and child.wait() == 3
    assert f"in {tmp_path / 'log.tmp'}" in child.tail()
    assert not Path(f"/proc/{below}").exists() or "Z" in Path(f"/proc/{below}/stat").read_text()


def test_stages_of_a_start() -> None:
    stages = Stages(10.0)
    for now, stage in ((10.5, "process"), (11.0, "read"), (13.0, "prove"), (13.5, "read"), (14.0, "ready")):
        stages.at(stage, now)
    assert stages.seconds == {"process": 1.0, "read": 2.5, "prove": 0.5}
