"""Deletion where ledgers share segments, as forks will."""

import sqlite3
from functools import partial
from pathlib import Path

import numpy as np

from agentmem.identity import NO_VERSION, Ledger, TurnPlace
from agentmem.validation import AgentKey
from cache_service.ledger import agents, segments, turns, versions
from cache_service.ledger.agents import Conversation
from cache_service.ledger.clock import Moment
from cache_service.ledger.database import Database
from cache_service.ledger.turns import Turn

ADA, EVE = AgentKey("n", "ada", "m"), AgentKey("n", "eve", "m")
NOW = Moment(0, 0)
NO_CONVERSATION = Conversation("", 0, b"")


def part(*tokens: int) -> Ledger:
    ends = np.arange(1, len(tokens) + 1, dtype=np.uint32)
    return Ledger(np.array(tokens, dtype=np.uint32), b"x" * len(tokens), ends, "t", (TurnPlace(len(tokens), 0),))


def rows(connection: sqlite3.Connection, table: str) -> int:
    (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(count)


def test_deleting_an_agent_keeps_the_segments_that_a_fork_stands_on(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.db")
    database.open()
    version = NO_VERSION
    for tokens in ((1, 2), (3, 4), (5, 6)):
        turn = Turn(ADA, version, 2 * version.number, part(*tokens), "", b"", b"", NO_CONVERSATION)
        version = database.write_blocking(partial(turns.commit, turn=turn, now=NOW)).version
    state = database.read_blocking(lambda c: agents.find(c, ADA))
    assert state is not None
    fork, first = database.read_blocking(lambda c: segments.cut(c, state.head, 4)), versions.first()
    database.write_blocking(lambda c: agents.create(c, EVE, first, fork, NO_CONVERSATION, NOW))

    database.write_blocking(lambda c: agents.delete(c, ADA))
    assert database.read_blocking(lambda c: segments.read(c, fork)).token_ids.tolist() == [1, 2, 3, 4]
    assert database.read_blocking(partial(rows, table="segments")) == 2
    follow = Turn(EVE, first, 3, part(9), "", b"", b"", NO_CONVERSATION)
    assert database.write_blocking(lambda c: turns.commit(c, follow, NOW)).version[:2] == (first.uid, 2)

    database.write_blocking(lambda c: agents.delete(c, EVE))
    for table in ("segments", "agents", "turns", "object_refs"):
        assert database.read_blocking(partial(rows, table=table)) == 0, table
    database.close()
