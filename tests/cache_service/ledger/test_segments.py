"""Segments: what a commit writes, and what is no segment that was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentmem.kv.ledger import Ledger
from cache_service.damage import LedgerDamaged
from cache_service.ledger import segments
from cache_service.ledger.database import Database
from cache_service.ledger.segments import EMPTY

from .conftest import Engine


def test_a_commit_writes_only_its_own_tokens(engine: Engine) -> None:
    database = engine
    part = Ledger(np.arange(1000, dtype=np.uint32), b"x" * 1000, np.arange(1, 1001, dtype=np.uint32), "t")
    head = database.write_blocking(lambda c: segments.append(c, "n", EMPTY, 0, part, 0, 1))
    small = Ledger(np.array([7], dtype=np.uint32), b"7", np.array([1], dtype=np.uint32), "t")
    head = database.write_blocking(lambda c: segments.append(c, "n", head, 600, small, 1, 2))
    rows = database.read_blocking(lambda c: c.execute("SELECT tokens, length(token_ids) FROM segments").fetchall())
    assert rows == [(1000, 4000), (1, 4)]
    assert database.read_blocking(lambda c: segments.read(c, head)).token_ids.tolist() == [*range(600), 7]


_SET = (
    "parent_id = 1, parent_tokens = 1, parent_bytes = 1, tokens = 2, text_bytes = 2, generated_tokens = 2, version = 7"
)
_SET += ", turns = 3, tokenizer_hash = 'T', opening_bytes = 1, template_time = 'T', token_ids = x'00', text = x'00'"
_SET += ", offsets = x'010000000200000003000001'"


@pytest.mark.parametrize("change", _SET.split(", "))
def test_a_changed_column_is_found_and_an_erasure_leaves_it_damaged(tmp_path: Path, change: str) -> None:
    database = Database(tmp_path / "store.db")
    database.open()
    part = Ledger(np.arange(3, dtype=np.uint32), b"abc", np.arange(1, 4, dtype=np.uint32), "t")
    other = database.write_blocking(lambda c: segments.append(c, "n", EMPTY, 0, part, 1, 1))
    first = database.write_blocking(lambda c: segments.append(c, "n", EMPTY, 0, part, 1, 1))
    head = database.write_blocking(lambda c: segments.append(c, "n", first, 2, part, 1, 2))
    assert database.read_blocking(lambda c: [*segments.damaged(c)]) == []
    database.write_blocking(lambda c: c.execute(f"UPDATE segments SET {change} WHERE id = ?", (head.segment,)) and None)
    for _ in range(2):
        assert database.read_blocking(lambda c: [*segments.damaged(c)]) == [head.segment]
        with pytest.raises(LedgerDamaged):
            database.read_blocking(lambda c: segments.read(c, head))
        database.write_blocking(lambda c: segments.erase(c, head.segment, 1))
    assert len(database.read_blocking(lambda c: segments.read(c, other))) == 3
    database.close()


@pytest.mark.parametrize("wrong", [{"tokens": 2}, {"text_bytes": 2}, {"turns": 3}, {"segment": 1}, {"segment": None}])
def test_a_head_that_is_not_its_chains_is_damaged(engine: Engine, wrong: dict[str, Any]) -> None:
    part = Ledger(np.arange(3, dtype=np.uint32), b"abc", np.arange(1, 4, dtype=np.uint32), "t")
    first = engine.write_blocking(lambda c: segments.append(c, "n", EMPTY, 0, part, 1, 1))
    head = engine.write_blocking(lambda c: segments.append(c, "n", first, 3, part, 1, 2))
    with pytest.raises(LedgerDamaged):
        engine.read_blocking(lambda c: segments.read(c, head._replace(**wrong)))
