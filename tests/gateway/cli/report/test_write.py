"""`agentmem run --report`, on a scripted gateway."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ..conftest import Command
from ..run.conftest import agentmem, file, workflows
from ..run.events import ID
from ..run.scripted import ScriptedWorkflows

__all__ = ["agentmem", "file", "workflows"]


async def test_the_files(workflows: ScriptedWorkflows, agentmem: Command, tmp_path: Path) -> None:
    said = await agentmem("run", "--resume", ID, "--report", str(tmp_path / "new" / "report"))
    assert said.exit_code == 0
    written = {path.name: path.read_text() for path in (tmp_path / "new" / "report").iterdir()}
    assert said.stdout.splitlines()[-3:] == [
        f"wrote {tmp_path}/new/report/{name}" for name in ("report.md", "report.html", "plot.svg")
    ]
    assert set(written) == {"report.md", "report.html", "plot.svg"}
    assert "](plot.svg)" in written["report.md"]
    assert written["plot.svg"][written["plot.svg"].index("<svg") :] in written["report.html"]


async def test_without_matplotlib_there_is_no_plot(
    workflows: ScriptedWorkflows, agentmem: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "gateway.cli.report.plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = await agentmem("run", str(file), "--report", str(tmp_path / "report"), "--json")
    assert said.exit_code == 0
    assert said.stderr.splitlines() == [
        "the report has no plot: it takes matplotlib; `pip install 'agentmem[report]'` brings it",
        f"wrote {tmp_path}/report/report.md",
        f"wrote {tmp_path}/report/report.html",
    ]
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"report.md", "report.html"}


async def test_a_disk_that_refuses(workflows: ScriptedWorkflows, agentmem: Command, tmp_path: Path) -> None:
    (tmp_path / "report.md").mkdir()
    said = await agentmem("run", "--resume", ID, "--report", str(tmp_path))
    assert said.exit_code == 1
    assert said.stderr == f"Error: cannot write the report to {tmp_path}: Is a directory\n"
