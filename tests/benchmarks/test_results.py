"""What is written, and sums of samples."""

import json
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.results import percentile


def test_percentiles() -> None:
    assert percentile([3.0], 99) == 3.0
    assert percentile([float(number) for number in range(101)], 90) == 90.0


def test_a_result_says_where_it_is_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    monkeypatch.setattr("sys.argv", ["agentmem bench ttft", "--samples", "1"])
    path = results.write("ttft-llama-3.1-8b-gpu", {"a": 1})
    assert path == results.write("ttft-llama-3.1-8b-gpu", {"a": 2})
    found = json.loads(path.read_text())
    assert (found["benchmark"], found["command"]) == ("ttft", "agentmem bench ttft --samples 1")
    assert found["figures"] == {"a": 2}
    assert found.keys() >= {"device", "system", "commit", "date", "mlx"}
    assert results.write(str(tmp_path / "elsewhere"), {}) == tmp_path / "elsewhere.json"
    with pytest.raises(SystemExit, match="absolute path"):
        results.write("../elsewhere", {})
    assert [each.name for each in path.parent.iterdir()] == ["ttft-llama-3.1-8b-gpu.json"]
