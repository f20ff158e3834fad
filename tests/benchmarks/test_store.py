"""The benchmark of the store, of few agents."""

import json
from pathlib import Path

import pytest

from benchmarks.store.command import LABELS, main, parser, tables


@pytest.mark.slow
async def test_few_agents(tmp_path: Path) -> None:
    asked = ["--agents", "3", "--calls", "4", "--turns", "1", "--runs", "1", "--output", str(tmp_path / "store")]
    await main(parser().parse_args(asked))
    found = json.loads((tmp_path / "store.json").read_text())["figures"]
    latencies, others = tables(found)
    assert [row[0] for row in latencies.rows] == [*LABELS.values()]
    assert found["turn_writes"]["median"] >= 1
    assert len(others.rows) == 3
