"""Results as they are written, and sums of samples."""

import json
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.results import conclude, percentile
from benchmarks.tables import Claim, Table

TABLES = [Table("Title", ("what", "time"), [("a", "1 ms")], "A note.")]


def test_percentiles() -> None:
    assert percentile([3.0], 99) == 3.0
    assert percentile([float(number) for number in range(101)], 90) == 90.0


def test_a_result_says_where_it_is_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    monkeypatch.setattr("sys.argv", ["agentmem bench ttft", "--samples", "1"])
    path = results.write("ttft-llama-3.1-8b-gpu", {"a": 1}, TABLES)
    assert path == results.write("ttft-llama-3.1-8b-gpu", {"a": 2}, TABLES)
    found = json.loads(path.read_text())
    assert (found["benchmark"], found["command"]) == ("ttft", "agentmem bench ttft --samples 1")
    assert found["figures"] == {"a": 2}
    assert [Table(**table).markdown() for table in found["tables"]] == [TABLES[0].markdown()]
    assert found.keys() >= {"device", "system", "commit", "date", "mlx"}
    assert results.write(str(tmp_path / "elsewhere"), {}, []) == tmp_path / "elsewhere.json"
    with pytest.raises(SystemExit, match="absolute path"):
        results.write("../elsewhere", {})
    assert [each.name for each in path.parent.iterdir()] == ["ttft-llama-3.1-8b-gpu.json"]


def test_a_result_that_is_not_finished_replaces_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    results.write("ttft", {"a": 1}, TABLES)
    assert results.write("ttft", {"a": 2}) == tmp_path / "ttft.json.unfinished"
    assert json.loads((tmp_path / "ttft.json").read_text())["figures"] == {"a": 1}


@pytest.mark.parametrize(("values", "status"), [((), 0), ((1.0, 1.5), 0), ((1.0, 1.6), 1)])
def test_the_exit_status_says_whether_claims_are_met(
    values: tuple[float, ...], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = [Claim("warm over raw", value, 1.5, at_most=True) for value in values]
    assert conclude(str(tmp_path / "figures"), {}, TABLES, claims) == status
    shown = capsys.readouterr().out
    assert "1 ms" in shown and ("Figures to reach" in shown) is bool(claims)
    assert shown.endswith("figures.json\n")
