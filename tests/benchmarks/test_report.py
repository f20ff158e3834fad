"""The generated report: what it says, and that the committed one is of the committed results."""

import pytest

from benchmarks import report, results
from benchmarks.report import Result

MADE = {
    "benchmark": "ttft",
    "command": "agentmem bench ttft",
    "device": "a machine",
    "system": "Linux",
    "commit": "abc",
    "date": "2026-01-01",
    "mlx": "1",
    "tables": [{"title": "Reads", "columns": ["what", "ms"], "rows": [["path", "5"]], "note": ""}],
    "figures": {"ms": 5},
}
RESULT = Result("ttft-here", MADE)


def test_a_result_is_told_with_its_origin_and_its_tables() -> None:
    text = report.document([RESULT, Result("reads-here", {**MADE, "benchmark": "reads"})])
    assert "`agentmem bench ttft` on a machine, mlx 1, commit abc, 2026-01-01" in text
    assert text.count("| path | 5 |") == 2
    assert f"## reads\n\n{report.GONE}" in text


def test_pages_quote_tables_by_their_titles() -> None:
    readme = "before\n<!-- results ttft-here Reads -->\nold\n<!-- end -->\nafter"
    quoted = report.quoting(readme, [RESULT])
    assert "old" not in quoted
    assert "| path | 5 |" in quoted
    assert quoted.startswith("before\n")
    assert quoted.endswith("\nafter")
    assert report.quoting(quoted, [RESULT]) == quoted
    with pytest.raises(KeyError):
        report.quoting(readme.replace("Reads", "Writes"), [RESULT])


def test_the_committed_report_is_of_the_committed_results() -> None:
    found = report.read(results.RESULTS)
    assert len(report.document(found).encode()) <= 60 << 10, "keep the newest results, and fewer of their tables"
    assert report.document(found) == (report.HERE / "RESULTS.md").read_text(), "run: agentmem bench report"
    for page in report.QUOTING:
        assert report.quoting(page.read_text(), found) == page.read_text(), f"{page}: run: agentmem bench report"
