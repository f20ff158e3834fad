from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from gateway.cli.bench.machine.files import Files
from tests.gateway.cli.bench.machine.test_page import whole


def test_files_that_are_there_stay(tmp_path: Path) -> None:
    first, second = (Files(tmp_path / "out", whole(), {}) for _ in range(2))
    assert first.page.name == "agentmem-bench-apple-m2-max-some-4bit-2026-11-30.md"
    assert second.json.name == "agentmem-bench-apple-m2-max-some-4bit-2026-11-30-2.json"
    assert len([*(tmp_path / "out").iterdir()]) == 4


def test_names_are_in_neither_file_nor_in_their_own_names(tmp_path: Path) -> None:
    found = whole()
    found["model"] |= {"name": "jane", "source": "/Users/jane/models/x"}
    found["parts"][1]["error"] = "OSError: /Users/jane/x (on janes-mac)"
    files = Files(tmp_path, found, {"/Users/jane": "~", "jane": "USER", "janes-mac": "HOST"})
    for path in tmp_path.iterdir():
        assert "jane" not in path.name and "jane" not in path.read_text()
    assert json.loads(files.json.read_text())["model"]["source"] == "…/x"


def test_a_folder_that_goes_away_costs_no_figures(tmp_path: Path) -> None:
    found = whole()
    files = Files(tmp_path, found, {})
    shutil.rmtree(tmp_path)
    assert "| 4,096 tokens: TTFT | 4.00 s" in files.write(found) and files.problem == "No such file or directory"
    tmp_path.mkdir()
    assert files.write(found) == files.page.read_text() and files.problem == ""


def test_a_full_disk_leaves_the_files_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    found = whole()
    files = Files(tmp_path, found, {})
    before = files.page.read_text()
    monkeypatch.setattr("gateway.cli.bench.machine.files.sync", full)
    found["parts"] = []
    assert files.write(found) != before and files.problem == "No space left on device"
    assert files.page.read_text() == before and len([*tmp_path.iterdir()]) == 2


def test_a_long_name_is_cut(tmp_path: Path) -> None:
    found = whole()
    found["model"]["name"] = "m" * 300
    assert len(Files(tmp_path, found, {}).page.stem) <= 150


def test_json_is_json(tmp_path: Path) -> None:
    found = whole()
    found["model"]["kv_bits_measured"][0]["kl_divergence"] = float("inf")
    files = Files(tmp_path, found, {})
    assert "inf" in files.page.read_text()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(files.json.read_text(), parse_constant=refuse)
