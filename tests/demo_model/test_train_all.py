"""Training of the other architectures at a time: what is asked of whom."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.demo_model import train_all
from benchmarks.demo_model.train_all import command, main, passed, place


def test_what_is_not_done_is_gone_on_with(tmp_path: Path) -> None:
    assert passed(tmp_path / "gpt_oss") == []
    assert "--resume" not in command(tmp_path, "gpt_oss", 9, 3)
    (tmp_path / "gpt_oss").mkdir()
    facts = {"minute_passed_by_length": {"512": 2.0, "1024": 3.5, "256": 0.6}}
    (tmp_path / "gpt_oss" / "training.json").write_text(json.dumps(facts))
    assert passed(tmp_path / "gpt_oss") == [256, 512, 1024]
    asked = command(tmp_path, "gpt_oss", 9, 3)
    assert asked[asked.index("--minutes") + 1] == "9"
    assert asked[-1] == "--resume"


def test_gpus_are_taken_in_turns() -> None:
    assert [place(number, ["0", "2"])["CUDA_VISIBLE_DEVICES"] for number in range(3)] == ["0", "2", "0"]
    assert place(1, []) == {}


def test_a_program_sees_its_gpu_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(*_: object) -> list[str]:
        return [sys.executable, "-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"]

    monkeypatch.setattr(train_all, "command", fake)
    assert main(tmp_path, ["qwen2", "gpt_oss"], 1, ["3", "1"]) == 0
    assert [(tmp_path / f"{name}.log").read_text() for name in ("qwen2", "gpt_oss")] == ["3\n", "1\n"]


def test_each_has_a_log_and_a_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = tmp_path / "qwen2"
    done.mkdir()
    (done / "training.json").write_text(json.dumps({"minute_passed_by_length": {str(train_all.LONGEST): 8.0}}))

    def fake(output: Path, architecture: str, minutes: float, workers: int) -> list[str]:
        return [
            sys.executable,
            "-c",
            f"print('{architecture} {workers > 0}'); raise SystemExit({architecture == 'gpt_oss'})",
        ]

    monkeypatch.setattr(train_all, "command", fake)
    assert main(tmp_path, ["qwen2", "gemma3_text"], 1) == 0
    assert capsys.readouterr().out == "qwen2: passed [4096]; nothing to do\ngemma3_text: passed []; gemma3_text True\n"
    assert main(tmp_path, ["gpt_oss", "gemma3_text"], 1) == 1
