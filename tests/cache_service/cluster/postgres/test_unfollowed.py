"""A ledger whose present is ahead of the changes that can be followed: an older transaction still runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest

from agentmem.kv.blockfile import FileKind, FileName
from agentmem.kv.ledger import Version
from agentmem.validation import NEVER
from cache_service.cluster.postgres.database import Postgres
from cache_service.cluster.postgres.settings import Settings
from cache_service.connection import Connection
from cache_service.files import holding, warm_database
from cache_service.ledger import agents, branches, kv_changes, snapshots, turns
from tests.cache_service.ledger.rows import ADA, EVE, NOW, turn

NAMES = {FileName(FileKind.BLOCK, bytes([number]) * 16) for number in range(2)}


def restore(connection: Connection) -> str:
    uid = branches.restore(connection, ADA, "one", NOW).version.uid
    snapshots.delete(connection, ADA, "one")
    return uid


def fork(connection: Connection) -> str:
    forked = branches.fork(connection, ADA, EVE, 1, None, NEVER, NOW)
    agents.delete(connection, ADA)
    return forked.version.uid


@pytest.mark.parametrize("change", [restore, fork])
def test_the_source_of_an_unfollowed_move_keeps_its_files(
    postgres: Postgres, postgres_settings: Settings, change: Callable[[Connection], str]
) -> None:
    """The snapshot, or the agent, is gone before what has come of it has the files."""
    first = postgres.write_blocking(turns.commit, turn(1, 2), NOW).version
    with closing(sqlite3.connect(":memory:")) as warm:
        warm_database.prepare(warm)

        def publish(version: Version, names: set[FileName]) -> None:
            standing = postgres.read_blocking(kv_changes.standing, ADA, version, holding.followed(warm))
            holding.publish(warm, ADA, version, names, standing)

        def follow() -> None:
            holding.follow(warm, postgres.read_blocking(kv_changes.after, holding.followed(warm)))

        publish(first, NAMES)
        for name in ("one", "other"):
            postgres.write_blocking(snapshots.create, ADA, name, NOW)
        second = postgres.write_blocking(turns.commit, turn(3, base=first, keep=2), NOW).version
        publish(second, set())
        postgres.write_blocking(snapshots.delete, ADA, "other")
        with psycopg.connect(postgres_settings.conninfo) as older:
            older.execute("SELECT pg_current_xact_id()")
            uid = postgres.write_blocking(change)
            follow()
            publish(second, set())
            assert holding.of(warm, first.uid, 1) == NAMES
        follow()
        assert holding.of(warm, uid) == NAMES
        assert uid == first.uid or not holding.of_all(warm, first.uid)
