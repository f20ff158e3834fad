"""The generated report: what it says, and that the committed one is of the committed results."""

from typing import Any

import pytest

from benchmarks import results
from benchmarks.__main__ import NAMES
from benchmarks.plots import Plot, exact
from benchmarks.report import command, document
from benchmarks.report.document import Result
from benchmarks.report.missed import REASONS, reason
from benchmarks.tables import Claim, Table

MADE = {
    "benchmark": "transfer",
    "command": "agentmem bench transfer",
    "device": "a machine",
    "system": "Linux",
    "commit": "abc",
    "date": "2026-01-01",
    "mlx": "1",
    "figures": {"ms": 5},
}


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch) -> Result:
    import benchmarks.transfer as module

    def tables(figures: dict[str, Any]) -> list[Table]:
        return [Table("Reads", ("what", "ms"), [("path", str(figures["ms"]))])]

    def claims(figures: dict[str, Any]) -> list[Claim]:
        return [Claim("reading", figures["ms"], 4, at_most=True, unit=" ms")]

    def plots(figures: dict[str, Any]) -> list[Plot]:
        drawn = {"ours": [exact("path", figures["ms"])], "theirs": []}
        return [Plot("reads", "Reads by path", "what", "ms", drawn), Plot("writes", "Writes", "what", "ms", {})]

    monkeypatch.setattr(module, "tables", tables, raising=False)
    monkeypatch.setattr(module, "claims", claims, raising=False)
    monkeypatch.setattr(module, "plots", plots, raising=False)
    return Result("transfer-here", MADE)


def test_a_result_is_told_with_its_origin_its_table_and_what_it_missed(result: Result) -> None:
    text = document.document([result], Table("Paper", ("a", "b"), [("x", "y")]))
    assert "| transfer-here | reading | at most 4 ms | 5 ms | **missed** |" in text
    assert "- transfer-here, reading: not explained yet" in text
    assert "`agentmem bench transfer` on a machine, Linux, mlx 1, commit abc, 2026-01-01" in text
    assert "| path | 5 |" in text
    assert text.index("## Beside the paper") < text.index("## transfer")
    assert "![Reads by path](plots/transfer-here-reads.png)" in text
    assert "transfer-here-writes" not in text, "it has no points"
    assert list(result.plots()[0].series) == ["ours"]


def test_pages_quote_tables_by_their_titles(result: Result) -> None:
    readme = "before\n<!-- results transfer-here Reads -->\nold\n<!-- end -->\nafter"
    quoted = command.quoting(readme, [result])
    assert "old" not in quoted
    assert "| path | 5 |" in quoted
    assert quoted.startswith("before\n")
    assert quoted.endswith("\nafter")
    assert command.quoting(quoted, [result]) == quoted
    with pytest.raises(KeyError):
        command.quoting(readme.replace("Reads", "Writes"), [result])


def test_the_committed_report_is_of_the_committed_results() -> None:
    found = document.read(results.RESULTS)
    assert found
    assert {result.benchmark for result in found} <= NAMES.keys()
    assert command.text(found) == (command.HERE / "RESULTS.md").read_text(), "run: agentmem bench report"
    for page in command.QUOTING:
        assert command.quoting(page.read_text(), found) == page.read_text(), f"{page}: run: agentmem bench report"
    missed = [(result.name, claim.text) for result in found for claim in result.claims() if not claim.met]
    assert [each for each in missed if not reason(*each)] == [], "say why in benchmarks/report/missed.py"
    stale = [key for key in REASONS if not any(name == key[0] and text.startswith(key[1]) for name, text in missed)]
    assert stale == [], "these are met by now"
    plots = {f"{result.name}-{plot.name}.png" for result in found for plot in result.plots()}
    assert plots == {path.name for path in (command.HERE / "plots").glob("*.png")}
