"""`agentmem bench machine` from the shell with the demo model: its two files, and nothing that stays."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.cli.bench.machine.plan import steps
from tests.gateway.running import eventually

pytestmark = pytest.mark.timeout(600)

COMMAND = (sys.executable, "-m", "gateway.cli.main", "bench", "machine", "--model", "demo")
DIES = """
import os, sys
if "mlx_lm" in sys.orig_argv and "server" in sys.orig_argv:
    print("ValueError: no kernel for", sys.executable, flush=True)
    os._exit(3)
"""
"""A sitecustomize of mlx_lm.server, which dies at its start."""


class Run:
    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.process, self._folder, self.said = process, folder, ""

    async def until(self, wanted: str) -> None:
        assert self.process.stderr is not None
        while wanted not in self.said:
            line = await asyncio.wait_for(self.process.stderr.readline(), 120)
            assert line, self.said
            self.said += line.decode()

    async def ended(self, status: int) -> str:
        """Return what it wrote to standard output."""
        out, err = await asyncio.wait_for(self.process.communicate(), 500)
        assert self.process.returncode == status, self.said + err.decode()
        await eventually(lambda: not self.left(), within=60)
        assert [*(self._folder / "tmp").iterdir()] == [], "its folder is deleted"
        return out.decode()

    def left(self) -> list[psutil.Process]:
        """Return processes that have a TMPDIR in our folder, as no others have."""
        found = []
        for each in psutil.process_iter():
            try:
                ours = each.environ().get("TMPDIR", "").startswith(str(self._folder))
                if ours and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(each)
            except psutil.Error:
                continue
        return found

    def files(self) -> tuple[dict[str, Any], str]:
        names = [path.name for path in self._folder.glob("agentmem-bench-*")]
        assert len(names) == 2, names
        [page], [figures] = self._folder.glob("*.md"), self._folder.glob("*.json")
        for path in (page, figures):
            for secret in (str(Path.home()), socket.gethostname(), str(self._folder), str(Path(sys.prefix))):
                assert secret not in path.read_text(), f"{secret} in {path.name}"
        assert f"/{getpass.getuser()}" not in figures.read_text()
        return json.loads(figures.read_text()), page.read_text()


@pytest.fixture
def folder(run_dir: Path) -> Path:
    (run_dir / "tmp").mkdir()
    return run_dir


async def started(folder: Path, minutes: float, **environment: str) -> Run:
    more = {"TMPDIR": str(folder / "tmp"), "AGENTMEM_WORKER_QUALITY_CHECK": "false", "AGENTMEM_UP_KEYS": "/no/such"}
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "--minutes", f"{minutes}"),
        cwd=folder,
        env={**os.environ, **more, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    return Run(process, folder)


@pytest.fixture
async def runs() -> AsyncIterator[list[Run]]:
    begun: list[Run] = []
    yield begun
    for run in begun:
        for process in run.left():
            process.kill()


@pytest.mark.slow
async def test_every_part_is_in_the_page_and_the_json(folder: Path, runs: list[Run]) -> None:
    runs.append(run := await started(folder, 0.5))
    out = await run.ended(0)
    found, page = run.files()
    assert [(each["part"], each["server"], each["round"]) for each in found["parts"]] == [step[:3] for step in steps()]
    assert [each["error"] for each in found["parts"] if "error" in each] == []
    by_part = {(each["part"], each["server"], each["round"]): each.get("found") for each in found["parts"]}
    for server in ("agentmem", "mlx-lm"):
        first, later = by_part["start", server, 1], by_part["start", server, 2]
        assert 0 < first["ready"] <= first["first_answer"] and later["prompt"] > 1000
        sample = by_part["first tokens", server, 1]["1024"]["samples"][0]
        assert sample["cold"] > 0 and sample["hot_reused"]["reused"] > 900
        assert by_part["answers", server, 1]["1"]["tokens_per_second"] > 0
        assert by_part["first tokens", server, 1]["16384"] == {"skipped": "the context has 8,192 tokens"}
    ours = by_part["first tokens", "agentmem", 1]["1024"]
    assert ours["samples"][0]["warm_reused"]["tiers"].keys() == {"warm"} and ours["notes"] == []
    assert by_part["start", "agentmem", 2]["tiers"].keys() == {"warm"}, "memory outlives a restart"
    assert by_part["start", "agentmem", 1]["stages"].keys() >= {"process", "read"}
    assert found["model"]["attention_paths"] and found["settings"] == {"AGENTMEM_WORKER_QUALITY_CHECK": "false"}
    assert {"backend", "disk speed", "model demo"} <= {each["check"] for each in by_part["doctor", "", 1]["findings"]}
    assert out.startswith("# Agentmem on ") and "| TTFT" not in out and "1,024 tokens: TTFT" in out
    assert page.startswith(out.partition("all of it:")[0].rstrip())
    for section in ("Beside mlx-lm", "The machine", "Starts", "Paths and bits", "Capacity", "Failed, or left out"):
        assert f"\n## {section}\n" in page


@pytest.mark.slow
async def test_a_server_that_dies_is_reported_and_ours_is_measured(folder: Path, runs: list[Run]) -> None:
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(DIES)
    path = os.pathsep.join(filter(None, (str(folder / "site"), os.environ.get("PYTHONPATH", ""))))
    runs.append(run := await started(folder, 0.5, PYTHONPATH=path))
    await run.ended(0)
    found, page = run.files()
    starts = [each for each in found["parts"] if (each["part"], each["server"]) == ("start", "mlx-lm")]
    assert [each["error"].splitlines()[0] for each in starts] == ["mlx-lm ended; it wrote:"] * 2
    assert "ValueError: no kernel for" in page
    others = [each for each in found["parts"] if each["server"] == "mlx-lm" and each["part"] != "start"]
    assert {each["skipped"] for each in others} == {"mlx-lm was not started"}
    assert all(
        "found" in each
        for each in found["parts"]
        if each["part"] in ("start", "model") and each["server"] == "agentmem"
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_who_stops_it_leaves_nothing_but_what_was_measured(
    folder: Path, runs: list[Run], number: signal.Signals
) -> None:
    runs.append(run := await started(folder, 10))
    await run.until("agentmem, start: ")
    assert len(run.left()) >= 5, "the command, `agentmem up` and three services"
    run.process.send_signal(number)
    await run.until("stopping…")
    run.process.send_signal(number)
    out = await run.ended(130)
    found, page = run.files()
    assert found["stopped"] and "first_answer" in found["parts"][1]["found"]
    assert "**Stopped by the user: parts are missing.**" in page and "all of it: agentmem-bench-" in out
