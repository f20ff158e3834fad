"""The smallest answers that the benchmark can measure, and what it says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.speculation.command import loaded, main, tables
from benchmarks.speculation.requests import BOTH, PROSE, REPEATED, REQUESTS, together
from tests.tiny_models import write_llama

ASKED = [next(request for request in REQUESTS if request.kind == kind) for kind in (REPEATED, PROSE)]
TOKENS = 12


@pytest.mark.slow
def test_an_answer_of_each_kind(tmp_path: Path) -> None:
    """Of a random model, which repeats nothing: plain steps both times."""
    directory, output = write_llama(tmp_path / "model"), tmp_path / "speculation"
    model = loaded("tiny", str(directory))
    assert main(model, ASKED, [1, 2], TOKENS, 1, str(output)) in (0, 1), "as fast as it happens to be"
    assert not model.memory.pool.full.used, "blocks were given back"
    figures = json.loads(output.with_suffix(".json").read_text())["figures"]
    for request in ASKED:
        found = figures["answers"][request.name]
        assert found["kind"] == request.kind
        assert found["tokens"] == found["same_tokens"] <= TOKENS
        assert found["tokens"] == found["steps"] + found["accepted"]
        assert len(figures["mlx-lm"]["samples"]) == 1
        ratio = found["speculative"]["median"] / found["plain"]["median"]
        assert found["ratio"]["samples"] == [pytest.approx(ratio, rel=1e-3)]
    [table] = tables(figures)
    beside = [f"2 agents, {kind}" for kind in (REPEATED, PROSE, BOTH)]
    assert [row[0] for row in table.rows] == [*(request.name for request in ASKED), *beside]
    assert {len(row) for row in table.rows} == {len(table.columns)}


def test_agents_ask_all_of_a_kind_or_half_of_each() -> None:
    assert {name: each for name, (_, each) in together(REQUESTS, 1).items()} == {r.name: [r] for r in REQUESTS}
    found = dict(together(REQUESTS, 5).values())
    assert {len(each) for each in found.values()} == {5}
    assert [request.kind for request in found[BOTH]] == [REPEATED, PROSE, REPEATED, PROSE, REPEATED]
    assert {request.kind for request in found[PROSE]} == {PROSE}
    assert len(set(found[REPEATED])) == 4, "the fifth asks what the first does"
