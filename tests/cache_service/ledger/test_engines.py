"""The functions of a connection, on SQLite and on PostgreSQL: what a ledger promises, it promises on both."""

from __future__ import annotations

import pytest

from agentmem.kv.ledger import NO_VERSION, Version
from agentmem.validation import AgentKey, IdleTimes
from cache_service.damage import LedgerDamaged
from cache_service.ledger import (
    agents,
    branches,
    object_references,
    snapshots,
    turns,
)
from cache_service.ledger.turns import Turn

from .conftest import Engine
from .rows import ADA, EVE, NOW, OBJECTS, count, damaged, turn, upload

NEVER = IdleTimes(None, None)


def commit(engine: Engine, new: Turn) -> Version:
    return engine.write_blocking(turns.commit, new, NOW).version


def fill(engine: Engine, *lists: tuple[int, ...], key: AgentKey = ADA) -> list[Version]:
    made, version, keep = [], NO_VERSION, 0
    for number, each in enumerate(lists):
        version = commit(engine, turn(*each, key=key, base=version, keep=keep, request_id=f"r{number}"))
        keep += len(each)
        made.append(version)
    return made


def test_an_object_goes_with_the_last_state_that_has_it(engine: Engine) -> None:
    fill(engine, (1, 2), (3, 4))
    engine.write_blocking(upload, ADA, OBJECTS[:2])
    assert engine.read_blocking(agents.described, ADA).remote == 1
    engine.write_blocking(snapshots.create, ADA, "s", NOW)
    engine.write_blocking(branches.fork, ADA, EVE, None, None, NEVER, NOW)
    engine.write_blocking(upload, ADA, OBJECTS[2:])
    ada, eve = (engine.read_blocking(agents.existing, key).version.uid for key in (ADA, EVE))
    assert engine.read_blocking(object_references.remote_uids) == {ada, eve}
    assert engine.read_blocking(object_references.of, eve) == set(OBJECTS[:2])
    assert engine.read_blocking(object_references.fingerprint, eve) == "f"
    engine.write_blocking(snapshots.delete, ADA, "s")
    assert engine.read_blocking(count, "objects") == 3
    engine.write_blocking(agents.delete, ADA)
    assert engine.read_blocking(count, "objects") == 2 and engine.read_blocking(count, "object_deletions") == 1
    engine.write_blocking(branches.trim, EVE, 1, None, NOW)
    assert engine.read_blocking(object_references.of, eve) == set(), "they end behind the cut"
    assert engine.read_blocking(count, "objects") == 2, "the automatic snapshot has them"
    engine.write_blocking(agents.delete, EVE)
    assert engine.read_blocking(count, "objects") == 0 and engine.read_blocking(count, "object_deletions") == 3


def test_agents_with_hostile_names_are_listed_bytewise(engine: Engine) -> None:
    names = [
        "a",
        "a\0",
        "a\0\0",
        "a\0\x01",
        "a\x01",
        "a\x01\0",
        "a\x01\x02",
        "a\x02",
        "a%s?:x'",
        "B",
        "Z",
        "é",
        "\U0001f600",
    ]
    for name in names:
        commit(engine, turn(1, key=AgentKey("n", name, "m?")))
    commit(engine, turn(1, key=AgentKey("\0", "a", "m?")))
    found: list[str] = []
    after = None
    while page := engine.read_blocking(agents.page, AgentKey("n", "", ""), after, 2):
        found += [agent.key.agent_id for agent in page]
        after = page[-1].key[1:]
    assert found == sorted(names, key=str.encode)
    assert engine.read_blocking(damaged) == []


@pytest.mark.parametrize("change", ["tokens = 2", "text_bytes = 1", "turns = 3", "head_segment = 1"])
def test_no_turn_is_built_on_a_wrong_counter(engine: Engine, change: str) -> None:
    fill(engine, (1, 2, 3), (4,))
    engine.write_blocking(lambda c: c.execute(f"UPDATE agents SET {change}") and None)
    state = engine.read_blocking(agents.existing, ADA)
    for keep in (0, state.head.tokens):
        with pytest.raises(LedgerDamaged):
            engine.write_blocking(turns.commit, turn(5, base=state.version, keep=keep), NOW)
