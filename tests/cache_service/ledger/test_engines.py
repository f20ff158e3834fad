"""The functions of a connection, on SQLite and on PostgreSQL: what a ledger promises, it promises on both."""

from __future__ import annotations

from typing import Any

import pytest

from agentmem.errors import Aborted, AlreadyExists, InvalidArgument, NotFound
from agentmem.kv.ledger import NO_VERSION, Version
from agentmem.validation import MAX_RECORD_BYTES, AgentKey, IdleTimes
from cache_service.connection import Connection
from cache_service.damage import LedgerDamaged
from cache_service.ledger import (
    agents,
    branches,
    finding,
    history,
    object_references,
    segments,
    snapshots,
    turns,
    workflow_records,
)
from cache_service.ledger.agents import Conversation
from cache_service.ledger.turns import Turn
from cache_service.ledger.workflow_records import Put

from .conftest import Engine
from .rows import ADA, EVE, NOW, OBJECTS, TABLES, charged, count, counted, damaged, part, tokens, turn, upload

NEVER = IdleTimes(None, None)


def commit(engine: Engine, new: Turn) -> Version:
    return engine.write_blocking(turns.commit, new, NOW).version


def fill(engine: Engine, *lists: tuple[int, ...], key: AgentKey = ADA) -> list[Version]:
    """Turns one after the other; their versions."""
    made, version, keep = [], NO_VERSION, 0
    for number, each in enumerate(lists):
        version = commit(engine, turn(*each, key=key, base=version, keep=keep, request_id=f"r{number}"))
        keep += len(each)
        made.append(version)
    return made


def test_turns_are_appended_and_read_back(engine: Engine) -> None:
    made = fill(engine, (1, 2), (3,), ())
    assert [version.number for version in made] == [1, 2, 3] and len({version.uid for version in made}) == 1
    opened = engine.read_blocking(turns.open_agent, ADA, NO_VERSION, "r1")
    assert opened.version == made[-1] and opened.ledger is not None and opened.turn is not None
    assert opened.ledger.token_ids.tolist() == [1, 2, 3] and opened.ledger.text == bytes([1, 2, 3])
    assert [place.end_token for place in opened.ledger.turns] == [2, 3, 3]
    assert opened.turn.version == made[1]
    assert engine.read_blocking(charged) == engine.read_blocking(counted) == {"n": 3 * 9}


def test_a_turn_on_another_version_is_aborted_and_changes_nothing(engine: Engine) -> None:
    first, second = fill(engine, (1,), (2,))
    for base in (NO_VERSION, first, second._replace(revision=bytes(16)), second._replace(uid="other")):
        with pytest.raises(Aborted):
            commit(engine, turn(3, base=base, keep=1))
    assert engine.read_blocking(tokens) == [1, 2]


def test_a_repetition_is_known_by_its_commit_id_and_a_retry_by_its_request_id(engine: Engine) -> None:
    new = turn(1, commit_id=b"c" * 16, request_id="r", request_digest=b"d", record=b"said")
    first = engine.write_blocking(turns.commit, new, NOW)
    again = engine.write_blocking(turns.commit, new, NOW)
    assert again.repeated and again.version == first.version
    later = commit(engine, turn(2, base=first.version, keep=1))
    assert engine.write_blocking(turns.commit, new, NOW) == again
    retried = engine.write_blocking(turns.commit, turn(1, request_id="r", request_digest=b"d"), NOW)
    assert retried.replayed is not None and (retried.version, retried.replayed.record) == (first.version, b"said")
    with pytest.raises(InvalidArgument):
        commit(engine, turn(1, request_id="r", request_digest=b"e"))
    assert engine.read_blocking(agents.existing, ADA).version == later


def test_dropped_tokens_stay_in_the_last_four_automatic_snapshots(engine: Engine) -> None:
    (version,) = fill(engine, (0, 0))
    engine.write_blocking(snapshots.create, ADA, "mine", NOW)
    for token in range(1, 8):
        version = commit(engine, turn(token, base=version, keep=1))
    found = engine.read_blocking(snapshots.page, ADA, None, 10)
    assert [each.name for each in found] == ["auto-7", "auto-6", "auto-5", "auto-4", "mine"]
    assert [each.automatic for each in found] == [1, 1, 1, 1, 0]
    engine.write_blocking(branches.restore, ADA, "auto-4", NOW)
    assert engine.read_blocking(tokens) == [0, 3]
    engine.write_blocking(snapshots.delete, ADA, "mine")
    with pytest.raises(NotFound):
        engine.write_blocking(branches.restore, ADA, "mine", NOW)
    assert engine.read_blocking(charged) == engine.read_blocking(counted)
    assert engine.read_blocking(damaged) == []


def test_forks_and_trims(engine: Engine) -> None:
    made = fill(engine, (1, 2, 3), (4, 5))
    old = AgentKey("n", "old", "m")
    engine.write_blocking(branches.fork, ADA, EVE, None, 4, NEVER, NOW)
    engine.write_blocking(branches.fork, ADA, old, 1, None, NEVER, NOW, at_revision=made[0].revision)
    assert engine.read_blocking(tokens, EVE) == [1, 2, 3, 4] and engine.read_blocking(tokens, old) == [1, 2, 3]
    with pytest.raises(AlreadyExists):
        engine.write_blocking(branches.fork, ADA, EVE, None, None, NEVER, NOW)
    with pytest.raises(NotFound):
        engine.write_blocking(branches.fork, ADA, AgentKey("n", "x", "m"), 1, None, NEVER, NOW, at_revision=bytes(16))
    trimmed = engine.write_blocking(branches.trim, ADA, 2, 2, NOW)
    assert engine.write_blocking(branches.trim, ADA, 2, 2, NOW) == trimmed
    assert engine.read_blocking(tokens) == [1, 2]
    with pytest.raises(Aborted):
        engine.write_blocking(branches.trim, ADA, 1, 2, NOW)
    returned = turn(9, base=trimmed.version, keep=4, snapshot_version=2)
    commit(engine, returned)
    assert engine.read_blocking(tokens) == [1, 2, 3, 4, 9]
    assert engine.read_blocking(damaged) == []


def test_a_prompt_finds_the_snapshot_that_it_continues(engine: Engine) -> None:
    fill(engine, (1, 2, 3), (4, 5))
    trimmed = engine.write_blocking(branches.trim, ADA, 1, None, NOW)
    found = engine.read_blocking(branches.find_snapshot, ADA, trimmed.version, bytes([1, 2, 3, 4, 9]), 1, "t")
    assert found is not None and found[0].number == 2 and found[1].token_ids.tolist() == [1, 2, 3, 4, 5]


def test_what_is_deleted_leaves_no_row_and_what_others_stand_on_stays(engine: Engine) -> None:
    fill(engine, (1, 2), (3, 4), (5, 6))
    engine.write_blocking(snapshots.create, ADA, "s", NOW)
    engine.write_blocking(branches.fork, ADA, EVE, None, 3, NEVER, NOW)
    engine.write_blocking(agents.delete, ADA)
    assert engine.read_blocking(tokens, EVE) == [1, 2, 3]
    assert engine.read_blocking(count, "segments") == 2 and engine.read_blocking(count, "turns") == 0
    assert engine.read_blocking(damaged) == []
    engine.write_blocking(agents.delete, EVE._replace(model_id=""))
    assert {table: engine.read_blocking(count, table) for table in TABLES} == dict.fromkeys(TABLES, 0)
    assert engine.read_blocking(charged) == {}


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


def test_agents_are_found_by_conversations_and_by_turns(engine: Engine) -> None:
    hashes = [number.to_bytes(16, "big") for number in range(1, 600)]
    first = commit(engine, turn(1, conversation=Conversation("blue", 2, hashes[1]), request_id="one"))
    commit(engine, turn(2, base=first, keep=1, conversation=Conversation("blue", 500, hashes[499])))
    commit(engine, turn(1, key=EVE, conversation=Conversation("", 3, hashes[2]), request_id="one"))

    def find(*arguments: Any) -> tuple[str, int, int] | None:
        found = engine.read_blocking(finding.find, "n", "m", *arguments)
        return None if found is None else (found.agent.key.agent_id, found.messages, found.version.number)

    assert find(hashes, "") == ("ada", 500, 2)
    assert find(hashes[:499], "") == ("eve", 3, 1)
    assert find(hashes[:2], "blue") == ("ada", 2, 1), "a past state"
    assert find(hashes[:1], "") is None and find(hashes, "red") is None and find([], "") is None
    named = engine.read_blocking(finding.of_turn, "n", "m", "one")
    assert named is not None and named.agent.key == EVE, "the last one of that name"
    assert engine.read_blocking(finding.of_turn, "n", "m", "two") is None


def test_history_is_what_each_commit_brought(engine: Engine) -> None:
    made = fill(engine, (1, 2), (3,), (4, 5))
    entries = engine.read_blocking(history.page, ADA, None, 2)
    assert [(entry.version, entry.first_token, entry.tokens, entry.request_id) for entry in entries] == [
        (1, 0, 2, "r0"),
        (2, 2, 1, "r1"),
    ]
    (last,) = engine.read_blocking(history.page, ADA, entries[-1].id, 2)
    assert (last.version, last.prompt, last.created) == (3, bytes([4, 5]), NOW.wall)
    commit(engine, turn(6, base=made[-1], keep=4))
    engine.write_blocking(agents.delete, ADA)
    with pytest.raises(NotFound):
        engine.read_blocking(history.page, ADA, None, 2)


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


def test_an_imported_agent_has_all_of_its_turns(engine: Engine) -> None:
    fill(engine, (1, 2), (3, 4))
    content = engine.read_blocking(turns.open_agent, ADA, NO_VERSION, "").ledger
    assert content is not None
    version = engine.write_blocking(turns.create_agent, EVE, content, NOW)
    assert version.number == 2 and engine.read_blocking(tokens, EVE) == [1, 2, 3, 4]
    with pytest.raises(AlreadyExists):
        engine.write_blocking(turns.create_agent, EVE, part(1), NOW)


def test_what_an_agent_is_set_to(engine: Engine) -> None:
    with pytest.raises(NotFound):
        engine.write_blocking(agents.change, ADA, pinned=1)
    fill(engine, (1,))
    changed = engine.write_blocking(agents.change, ADA, pinned=True, ttl=5, delete_after=None)
    assert (changed.pinned, changed.ttl, changed.delete_after, changed.turns) == (1, 5, None, 1)
    assert engine.read_blocking(agents.described, ADA) == changed


def test_records_of_runs_grow_and_go(engine: Engine) -> None:
    def put(version: int, payload: bytes | None, *events: bytes) -> int:
        return engine.write_blocking(workflow_records.put, Put("n", "w", version, b"s", payload, events))

    with pytest.raises(InvalidArgument):
        put(0, None)
    assert (put(0, b"p", b"one"), put(1, None, b"two", b"three"), put(2, b"longer")) == (1, 2, 3)
    for version in (0, 2, 4):
        with pytest.raises(Aborted):
            put(version, b"x")
    with pytest.raises(InvalidArgument):
        put(3, None, bytes(MAX_RECORD_BYTES))
    found = engine.read_blocking(workflow_records.read, "n", "w", 1)
    assert found is not None and (found.payload, found.events) == (b"longer", [b"two", b"three"])
    engine.write_blocking(workflow_records.put, Put("n", "v", 0, b"", b"", []))
    page = engine.read_blocking(workflow_records.page, "n", workflow_records.NEWEST, 9)
    assert [each.workflow_id for each in page] == ["v", "w"]
    assert engine.read_blocking(charged) == engine.read_blocking(counted) and engine.read_blocking(damaged) == []
    with pytest.raises(Aborted):
        engine.write_blocking(workflow_records.delete, "n", "w", 1)
    for name, version in (("w", 3), ("v", 1)):
        engine.write_blocking(workflow_records.delete, "n", name, version)
    assert engine.read_blocking(count, "workflow_parts") == 0 and engine.read_blocking(charged) == {}


def flip(connection: Connection) -> None:
    """Change rows as a flipped bit does."""
    connection.execute("UPDATE segments SET version = version + 1")


def test_a_damaged_ledger_is_not_served_and_changing_it_makes_it_no_better(engine: Engine) -> None:
    fill(engine, (1, 2, 3), (4,))
    engine.write_blocking(flip)
    with pytest.raises(LedgerDamaged):
        engine.read_blocking(tokens)
    engine.write_blocking(lambda connection: segments.erase(connection, 2, 0))
    assert engine.read_blocking(damaged) == [1, 2]
    assert engine.read_blocking(charged) == engine.read_blocking(counted)


@pytest.mark.parametrize("change", ["tokens = 2", "text_bytes = 1", "turns = 3", "head_segment = 1"])
def test_no_turn_is_built_on_a_wrong_counter(engine: Engine, change: str) -> None:
    fill(engine, (1, 2, 3), (4,))
    engine.write_blocking(lambda c: c.execute(f"UPDATE agents SET {change}") and None)
    state = engine.read_blocking(agents.existing, ADA)
    for keep in (0, state.head.tokens):
        with pytest.raises(LedgerDamaged):
            engine.write_blocking(turns.commit, turn(5, base=state.version, keep=keep), NOW)


def test_work_that_raises_has_changed_nothing(engine: Engine) -> None:
    def work(connection: Connection) -> None:
        turns.commit(connection, turn(1), NOW)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        engine.write_blocking(work)
    assert engine.read_blocking(count, "segments") == engine.read_blocking(count, "agents") == 0
