"""A key outlier ruins plain 4-bit keys and not ours, and the check at load tells them apart."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.key_outliers import OURS_4, PLAIN_4, RECOMMENDED, UNQUANTIZED, main, parser, tables


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("results") / "key-outliers"
    assert main(parser().parse_args(["--biases", "0", "100", "--dialogues", "2", "--output", str(path)])) == 0
    found: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())["figures"]
    return found


def test_recall_is_lost_with_plain_keys_and_kept_with_ours(figures: dict[str, Any]) -> None:
    none, outlier = (row["found"] for row in figures["rows"])
    assert {of["recall"] for of in none.values()} == {1.0}
    assert outlier[PLAIN_4]["recall"] < 0.6
    assert outlier[UNQUANTIZED]["recall"] == outlier[OURS_4]["recall"] == outlier[RECOMMENDED]["recall"] == 1.0
    assert outlier[PLAIN_4]["perplexity"] > 2 > outlier[OURS_4]["perplexity"]


def test_the_check_sees_it(figures: dict[str, Any]) -> None:
    none, outlier = (row["check"] for row in figures["rows"])
    assert outlier[PLAIN_4] > 5 * none[PLAIN_4]
    assert outlier[PLAIN_4] > 5 * outlier[OURS_4]


def test_what_is_shown(figures: dict[str, Any]) -> None:
    [table] = tables(figures)
    assert [row[0] for row in table.rows] == ["0", "100"]
