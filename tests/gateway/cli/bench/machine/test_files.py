from __future__ import annotations

import json
from pathlib import Path

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


def test_json_is_json(tmp_path: Path) -> None:
    found = whole()
    found["model"]["kv_bits_measured"][0]["kl_divergence"] = float("inf")
    files = Files(tmp_path, found, {})
    assert "inf" in files.page.read_text()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(files.json.read_text(), parse_constant=refuse)
