"""The smallest answers that the benchmark can measure, and what it says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.speculation import LEAST, PROSE, REPEATED, REQUESTS, claims, main, tables
from tests.tiny_models import write_llama

ASKED = [next(request for request in REQUESTS if request.kind == kind) for kind in LEAST]
TOKENS = 12


@pytest.mark.slow
def test_an_answer_of_each_kind(tmp_path: Path) -> None:
    """Of a random model, which repeats nothing: plain steps both times."""
    directory, output = write_llama(tmp_path / "model"), tmp_path / "speculation"
    assert main("tiny", str(directory), ASKED, TOKENS, 1, str(output)) in (0, 1), "as fast as it happens to be"
    figures = json.loads(output.with_suffix(".json").read_text())["figures"]
    for request in ASKED:
        found = figures["answers"][request.name]
        assert found["kind"] == request.kind
        assert found["tokens"] == found["same_tokens"] <= TOKENS
        assert found["tokens"] == found["steps"] + found["accepted"]
        assert len(figures["mlx-lm"]["samples"]) == 1
        assert found["ratio"]["samples"] == [found["speculative"]["median"] / found["plain"]["median"]]
    [table] = tables(figures)
    assert [row[0] for row in table.rows] == [request.name for request in ASKED]
    assert {len(row) for row in table.rows} == {len(table.columns)}


def test_prose_counts_at_its_worst_and_what_is_repeated_by_its_median() -> None:
    answers = [(REPEATED, 1.2), (REPEATED, 2.0), (REPEATED, 4.0), (PROSE, 3.0), (PROSE, 0.96)]
    named = {str(at): {"kind": kind, "ratio": {"median": ratio}} for at, (kind, ratio) in enumerate(answers)}
    repeated, prose = claims({"answers": named})
    assert (repeated.value, repeated.met) == (2.0, True)
    assert (prose.value, prose.met) == (0.96, False)
