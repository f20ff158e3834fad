"""The segment tree against a plain list: whatever is kept, cut and restarted, every ledger reads back exactly.

On both engines; of PostgreSQL only the connections are closed and opened again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from agentmem.kv.ledger import Ledger
from cache_service.damage import LedgerDamaged
from cache_service.ledger import segments
from cache_service.ledger.database import Database
from cache_service.ledger.segments import EMPTY, Head
from tests.full_matrix import FULL

from ..conftest import ENGINES
from .conftest import Engine

Token = tuple[int, bytes]
TOKENS = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=5)), max_size=6)


class Branch:
    """What a ledger should read as: its tokens, and the turns (version, end, generated) that are wholly in it."""

    def __init__(self, tokens: list[Token], turns: list[tuple[int, int, int]]) -> None:
        self.tokens = tokens
        self.turns = turns

    def followed_by(self, keep: int, tokens: list[Token], version: int, generated: int) -> Branch:
        turns = [turn for turn in self.turns if turn[1] <= keep]
        return Branch(self.tokens[:keep] + tokens, [*turns, (version, keep + len(tokens), generated)])


class LedgerMachine(RuleBasedStateMachine):
    engine: Engines
    """Set by who runs it."""

    @initialize()
    def open(self) -> None:
        self.engine.empty()
        self.database = self.engine.opened()
        self.branches: list[tuple[Head, Branch]] = [(EMPTY, Branch([], []))]

    @rule(data=st.data(), tokens=TOKENS)
    def commit(self, data: st.DataObject, tokens: list[Token]) -> None:
        """Append to the newest ledger, or to an older one as a fork does."""
        head, branch = data.draw(st.sampled_from(self.branches[-3:]))
        keep = data.draw(st.integers(0, len(branch.tokens)) | st.just(len(branch.tokens)))
        generated = data.draw(st.integers(0, len(tokens)))
        version = len(self.branches)
        part = Ledger(
            np.array([token for token, _ in tokens], dtype=np.uint32),
            b"".join(text for _, text in tokens),
            np.cumsum([len(text) for _, text in tokens], dtype=np.uint32),
            "t",
        )
        new = self.database.write_blocking(lambda c: segments.append(c, "n", head, keep, part, generated, version))
        self.branches.append((new, branch.followed_by(keep, tokens, version, generated)))

    @rule()
    def restart(self) -> None:
        self.database.close()
        self.database = self.engine.opened()

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        """A ledger cut anywhere is a ledger, and making it writes nothing."""
        head, branch = data.draw(st.sampled_from(self.branches))
        keep = data.draw(st.integers(0, len(branch.tokens)))
        part = self.database.read_blocking(lambda c: segments.cut(c, head, keep))
        self.check(part, Branch(branch.tokens[:keep], [turn for turn in branch.turns if turn[1] <= keep]))

    @invariant()
    def newest_reads_back(self) -> None:
        self.check(*self.branches[-1])

    def check(self, head: Head, branch: Branch) -> None:
        found = self.database.read_blocking(lambda c: segments.read(c, head))
        assert found.token_ids.tolist() == [token for token, _ in branch.tokens]
        assert found.text == b"".join(text for _, text in branch.tokens)
        assert found.offsets.tolist() == np.cumsum([len(text) for _, text in branch.tokens], dtype=int).tolist()
        assert [(turn.version, turn.end_token, turn.generated_tokens) for turn in found.turns] == branch.turns
        assert head[1:] == (len(branch.tokens), len(found.text), len(branch.turns))

    def teardown(self) -> None:
        if hasattr(self, "branches"):
            for head, branch in self.branches:
                self.check(head, branch)
            self.database.close()


@dataclass(frozen=True)
class Engines:
    place: Path | None
    made: Callable[[], Engine]

    def opened(self) -> Engine:
        found = self.made()
        found.open()
        return found

    def empty(self) -> None:
        if self.place is not None:
            for file in self.place.parent.glob(f"{self.place.name}*"):
                file.unlink()
        else:
            database = self.opened()
            database.write_blocking(lambda connection: connection.execute("TRUNCATE segments CASCADE"))
            database.close()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_every_ledger_reads_back(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if engine == "sqlite":
        place = tmp_path / "store.db"
        LedgerMachine.engine = Engines(place, lambda: Database(place))
    else:
        from cache_service.cluster.postgres.database import Postgres

        where = request.getfixturevalue("postgres_settings")
        LedgerMachine.engine = Engines(None, lambda: Postgres(where))
    examples = settings(max_examples=40 if FULL else 20, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(LedgerMachine, settings=examples)


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
