"""Refusals of `bench machine`, and its end without a disk; tests/system/test_bench_machine.py runs all of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli.bench.machine import command
from gateway.cli.bench.machine.course import Course
from gateway.cli.bench.machine.files import Files
from gateway.cli.main import main


def invoked(*arguments: str) -> tuple[int, str, str]:
    ended = CliRunner().invoke(main, ["bench", "machine", *arguments], catch_exceptions=False)
    return ended.exit_code, ended.stdout, ended.stderr


def test_an_output_that_takes_no_files_is_refused_before_the_model_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(command, "subject", fetched.append)
    (tmp_path / "file").touch()
    status, _, said = invoked("--output", str(tmp_path / "file" / "x"))
    assert (status, said.splitlines()) == (2, [f"Error: --output {tmp_path / 'file' / 'x'}: Not a directory"])
    assert fetched == []


@pytest.mark.parametrize("minutes", ["nan", "inf", "-inf", "0", "1441"])
def test_minutes_are_a_number_up_to_a_day(minutes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "subject", pytest.fail)
    status, _, said = invoked("--minutes", minutes)
    assert status == 2 and "Invalid value for '--minutes'" in said


def test_the_page_is_printed_where_its_folder_went_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(_: Course, found: dict[str, Any], files: Files) -> None:
        shutil.rmtree(tmp_path / "out")
        found["parts"].append({"part": "work", "server": "agentmem", "round": 1, "error": "no kernel"})
        files.write(found)

    monkeypatch.setattr(Course, "run", run)
    status, out, said = invoked("--model", "demo", "--output", str(tmp_path / "out"))
    assert status == 1 and out.startswith("# Agentmem on ") and "- agentmem, work: error: no kernel" in out
    assert f"--output {tmp_path / 'out'} does not take the files (No such file or directory)" in said
