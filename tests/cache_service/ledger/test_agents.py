"""Deletion where ledgers share segments, as forks will, on both engines."""

from functools import partial

from agentmem.kv.ledger import NO_VERSION
from cache_service.ledger import agents, segments, turns, versions
from cache_service.ledger.agents import NO_CONVERSATION

from .conftest import Engine
from .rows import ADA, EVE, NOW, TABLES, count, turn


def test_deleting_an_agent_keeps_the_segments_that_a_fork_stands_on(engine: Engine) -> None:
    version = NO_VERSION
    for each in ((1, 2), (3, 4), (5, 6)):
        new = turn(*each, base=version, keep=2 * version.number)
        version = engine.write_blocking(partial(turns.commit, turn=new, now=NOW)).version
    state = engine.read_blocking(agents.find, ADA)
    assert state is not None
    fork, first = engine.read_blocking(segments.cut, state.head, 4), versions.first()
    engine.write_blocking(lambda c: agents.create(c, EVE, first, fork, NO_CONVERSATION, NOW))

    engine.write_blocking(agents.delete, ADA)
    assert engine.read_blocking(segments.read, fork).token_ids.tolist() == [1, 2, 3, 4]
    assert engine.read_blocking(count, "segments") == 2
    follow = turn(9, key=EVE, base=first, keep=3)
    assert engine.write_blocking(turns.commit, follow, NOW).version[:2] == (first.uid, 2)

    engine.write_blocking(agents.delete, EVE)
    for table in TABLES:
        assert engine.read_blocking(count, table) == 0, table
