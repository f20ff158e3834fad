"""store.db and warm.db: what is true between the two transactions of a change."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentmem.validation import AgentKey
from cache_service.files import holding
from cache_service.ledger import agents, branches, kv_changes, snapshots
from cache_service.tiers.warm_rows import WarmRows

from . import kv
from .conftest import Running
from .interrupted import template
from .invariants import paths
from .ledger.rows import NOW
from .scenarios import chain, commit, hold

__all__ = ["template"]
_ADA = AgentKey.from_proto(kv.key())


def rows(path: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def faults(store: Running) -> list[str]:
    """Return warm.db's faults: rows of states that the ledger lacks, and differences from the files."""
    database, warm = store.data / "store.db", store.data / "warm.db"
    uids = {uid for (uid,) in rows(database, "SELECT uid FROM agents")}
    snapshots = rows(database, "SELECT uid, version FROM snapshots")
    found = [
        f"held by {uid}, versions {first} to {last}"
        for uid, first, last in rows(warm, "SELECT DISTINCT uid, first_version, last_version FROM held")
        if uid not in uids or (last and not any(of == uid and first <= version <= last for of, version in snapshots))
    ]
    known = {
        str(
            store.data
            / ("blocks" if kind == 1 else "windows")
            / chain_hash[:1].hex()
            / f"{chain_hash.hex()}.safetensors"
        )
        for kind, chain_hash in rows(warm, "SELECT kind, chain_hash FROM files")
    }
    return found + [f"without a row or a file: {path}" for path in sorted(known ^ paths(store.data))]


async def test_a_ledger_forgets_nothing_that_was_not_followed(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """warm.db cannot be written for a while: what the ledger has said waits, and is done by the next call."""
    await commit(store, "ada", [1, 2, 3, 4], 0, None, "ada 1")
    await hold(store, kv.key(), [1, 2])
    with monkeypatch.context() as broken:

        def fail(*_: object, **__: object) -> Any:
            raise sqlite3.OperationalError("disk I/O error")

        broken.setattr(WarmRows, "_follow", fail)
        await store.trim(2)
        store.store._rows.forget_followed()
        assert len(rows(store.data / "store.db", "SELECT * FROM kv_changes")) > 0
    await asyncio.wrap_future(store.store._blocks.follow())
    store.store._rows.forget_followed()
    assert rows(store.data / "store.db", "SELECT * FROM kv_changes") == []
    assert faults(store) == []


def _erase(store: Running) -> int:
    return store.store._database.erase(bool, agents.delete, _ADA).result()


async def _publish(store: Running) -> None:
    await commit(store, "ada", [1, 2, 3, 4], 0, None, "ada 1")
    await hold(store, kv.key(), [1, 2])


async def _rest(store: Running) -> set[str]:
    await asyncio.wrap_future(store.store._blocks.follow())
    return paths(store.data)


Standing = Callable[..., Any]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_agent_is_deleted_while_files_are_published(
    store: Running, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """In the middle of warm.db's transaction: the ledger is asked in it, or has its deletion followed by the next."""
    ask: Standing = kv_changes.standing
    erased: list[int] = []

    def standing(connection: sqlite3.Connection, *args: Any) -> Any:
        if when == "before":
            erased.append(_erase(store))
            connection.execute("ROLLBACK")
            connection.execute("BEGIN")  # who asks now sees it
        found = ask(connection, *args)
        if when == "after":
            erased.append(_erase(store))
        return found

    monkeypatch.setattr(kv_changes, "standing", standing)
    await _publish(store)
    assert erased == [1]
    assert await _rest(store) == set()
    assert faults(store) == []


async def test_a_restore_while_files_are_published_has_those_of_its_snapshot(
    store: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot is gone again, and what was restored from it not followed yet, when the publication asks."""
    first = await commit(store, "ada", [1, 2, 3, 4], 0, None, "ada 1")
    await hold(store, kv.key(), [1, 2])
    await store.snapshot("one")
    await commit(store, "ada", [5], 4, first, "ada 2")
    before = paths(store.data)
    ask: Standing = kv_changes.standing

    def standing(connection: sqlite3.Connection, *args: Any) -> Any:
        monkeypatch.undo()
        store.store._database.write_blocking(branches.restore, _ADA, "one", NOW)
        store.store._database.write_blocking(snapshots.delete, _ADA, "one")
        connection.execute("ROLLBACK")
        connection.execute("BEGIN")  # who asks now sees it
        return ask(connection, *args)

    monkeypatch.setattr(kv_changes, "standing", standing)
    await hold(store, kv.key(), [1, 3])
    assert before < await _rest(store)
    present = store.store._rows.read_blocking(holding.of, first.uid)
    assert {name.chain_hash for name in present} == {chain(number).chain_hash for number in (1, 2)}
    assert faults(store) == []
