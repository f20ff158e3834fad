"""The committed results: each with its origin, its samples and its tables."""

import json
from pathlib import Path

import pytest

from benchmarks.report import Result, read
from benchmarks.results import RESULTS, dump

FOUND = read(RESULTS)


def cells(name: str) -> dict[str, tuple[str, ...]]:
    """All rows of a result's tables by their first cell; of equal ones the first."""
    [result] = (each for each in FOUND if each.name == name)
    return {row[0]: tuple(row[1:]) for table in reversed(result.tables()) for row in reversed(table.rows)}


def test_there_are_results() -> None:
    assert len(FOUND) >= 13


@pytest.mark.parametrize("result", FOUND, ids=lambda result: result.name)
def test_a_result_is_whole(result: Result) -> None:
    assert result.found.keys() >= {"command", "device", "system", "commit", "date"}
    assert result.found["figures"]
    assert result.tables()
    for table in result.tables():
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.columns)}
        assert all(row[0] for row in table.rows)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_file_is_as_it_is_written(path: Path) -> None:
    assert dump(json.loads(path.read_text())) + "\n" == path.read_text()
