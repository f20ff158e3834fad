"""Directories that older stores made are brought along: nothing is lost, whenever the first start is killed."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agentmem.v1 import cache_store_pb2 as pb
from cache_service import checksums
from cache_service.files import warm_database
from cache_service.ledger.schema import MIGRATIONS, migrate
from cache_service.offline.check import check
from cache_service.offline.findings import CannotCheck
from cache_service.offline.recover import recover
from cache_service.offline.usage import usage
from cache_service.store import Store
from tests import scratch

from . import kv, older
from .conftest import running
from .interrupted import template
from .invariants import View, check_directory, expect, paths, view
from .offline.directory import query
from .scenarios import ROOMY, Scenario
from .test_crash_matrix import explore

__all__ = ["template"]
KEPT = {
    "files": "kind, chain_hash, namespace, agent_id, fingerprint, parent, first_token, size_bytes, digest, used",
    "quarantined": "*",
    "evicted": "uid, kind, chain_hash",
}
"""Tables whose rows move as they are, and columns that all schemas have."""
_HELD = "SELECT uid, snapshot, kind, chain_hash FROM held"


def without_uids(found: View) -> View:
    """What two directories that were made alike have in common."""
    agents = {
        name: {**each, "version": each["version"][0]}  # type: ignore[index]
        for name, each in found.agents.items()
    }
    return View(agents, found.files, found.record)


def whats(data: Path) -> set[str]:
    """What a check finds, but that the template's files are not named by its ledgers' tokens."""
    return {finding.what for finding in check(data).findings} - {"chain hash"}


def tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Rows of files in the database that has them; older ones lack columns."""
    with closing(sqlite3.connect(path)) as connection:
        return {table: sorted(connection.execute(f"SELECT {names} FROM {table}")) for table, names in KEPT.items()}


@pytest.fixture
def before(data: Path, schema: int) -> Path:
    """A directory of that schema."""
    older.unpack(schema, data)
    return data


@pytest.mark.parametrize("schema", older.SCHEMAS)
async def test_an_older_directory_keeps_everything(before: Path, template: Path, schema: int) -> None:
    new = before.with_name("new")
    shutil.copytree(template, new)
    async with running(new, ROOMY) as store:
        wanted = without_uids(await view(store))
    rows, on_disk = tables(before / ("store.db" if schema < 4 else "warm.db")), paths(before)
    held = old_references(before / "store.db") if schema < 4 else set(query(before, _HELD))
    async with running(before, ROOMY) as store:
        expect(without_uids(await view(store)), [wanted])
        check_directory(store)
        found = await view(store)
    assert tables(before / "warm.db") == rows and paths(before) == on_disk
    assert set(query(before, _HELD)) == held
    assert {path.stat().st_mode & 0o777 for path in before.glob("*.db")} == {0o600}
    assert whats(before) == set()
    async with running(before, ROOMY) as store:
        expect(await view(store), [found])


def old_references(path: Path) -> set[tuple[object, ...]]:
    """Who refers to files that are there: by uid and snapshot, with each file's name."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(
            "SELECT uid, 0, kind, chain_hash FROM refs JOIN files USING (kind, chain_hash)"
            " UNION ALL SELECT s.uid, s.id, kind, chain_hash FROM snapshot_refs AS r"
            " JOIN snapshots AS s ON s.id = r.snapshot JOIN files USING (kind, chain_hash)"
        ).fetchall()
    assert rows
    return set(rows)


@pytest.fixture(scope="module", params=older.SCHEMAS)
def old_template(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory of each schema, closed in order."""
    parent = Path(tempfile.mkdtemp(dir=scratch.FOLDER, prefix="am"))
    older.unpack(request.param, parent / "d")
    yield parent / "d"
    shutil.rmtree(parent)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # It starts a store for each step.
async def test_a_kill_at_any_step_of_the_first_start_loses_nothing(fault_shim: Path, old_template: Path) -> None:
    """All of the start is repeated: files, ledgers, snapshots, replays and the run are what they were."""
    counts, problems = await explore(fault_shim, old_template, [Scenario("first start", None)])
    assert counts.total() > 20
    assert not problems, f"{len(problems)} of {counts.total()} points:\n" + "\n".join(problems[:10])


@pytest.mark.parametrize("schema", [3])
async def test_what_is_copied_when_the_start_is_killed_is_copied_again(before: Path, schema: int) -> None:
    """warm.db is there, whole or not, and store.db is of before: an older store may have gone on with it meanwhile."""
    (before / "warm.db").write_bytes(b"half")
    (before / "warm.db-wal").write_bytes(b"of it")
    rows = tables(before / "store.db")
    async with running(before, ROOMY) as store:
        check_directory(store)
    assert tables(before / "warm.db") == rows and whats(before) == set()


@pytest.mark.parametrize("schema", [3])
async def test_what_a_killed_store_left_in_its_log_is_brought_along(before: Path, schema: int) -> None:
    copy = before.with_name("killed")
    with closing(sqlite3.connect(before / "store.db", isolation_level=None)) as connection:
        checksums.register(connection)
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("UPDATE agents SET label = 'only in the log' WHERE agent_id = 'ada'")
        shutil.copytree(before, copy, ignore=shutil.ignore_patterns("*-shm"))
    assert (copy / "store.db-wal").stat().st_size
    async with running(copy, ROOMY) as store:
        check_directory(store)
    assert query(copy, "SELECT count(*) FROM agents WHERE label = 'only in the log'") == [(1,)]


@pytest.mark.parametrize("schema", [3])
async def test_objects_keep_those_who_refer_to_them(before: Path, schema: int) -> None:
    """Evicted or not; an object that only its file kept alive goes, and files go on waiting for their upload."""
    with closing(sqlite3.connect(before / "store.db", isolation_level=None)) as connection:
        columns = (
            "kind, chain_hash, namespace, agent_id, model_id, fingerprint, parent, first_token, token_count,"
            " size_bytes, digest"
        )
        connection.execute("INSERT INTO remote_place VALUES (1, 'me', 's3://b/p', 's', '', 1)")
        connection.execute(f"INSERT INTO objects ({columns}, present) SELECT {columns}, 1 FROM files")
        name = connection.execute("SELECT kind, chain_hash FROM refs LIMIT 1").fetchone()
        connection.execute("UPDATE refs SET warm = 0 WHERE kind = ? AND chain_hash = ?", name)
        connection.execute("UPDATE snapshot_refs SET warm = 0 WHERE kind = ? AND chain_hash = ?", name)
        loose = connection.execute(
            "INSERT INTO objects SELECT 1, x'07', namespace, agent_id, model_id, fingerprint, parent, first_token,"
            " token_count, size_bytes, digest, 1 FROM files LIMIT 1 RETURNING kind, chain_hash"
        ).fetchone()
        waiting = connection.execute("SELECT kind, chain_hash FROM files LIMIT 1").fetchone()
        connection.execute("INSERT INTO uploads (last, kind, chain_hash) VALUES (0, ?, ?)", waiting)
        referring = "SELECT {}, kind, chain_hash FROM {} JOIN objects USING (kind, chain_hash)"
        of_agents = set(connection.execute(referring.format("uid", "refs")))
        of_snapshots = set(connection.execute(referring.format("snapshot", "snapshot_refs")))
    bring_along(before)
    assert set(query(before, "SELECT * FROM object_refs")) == of_agents
    assert set(query(before, "SELECT * FROM snapshot_object_refs")) == of_snapshots
    assert query(before, "SELECT kind, chain_hash FROM object_deletions") == [loose]
    assert query(before, "SELECT kind, chain_hash FROM uploads") == [waiting]
    assert query(before, "SELECT count(*) FROM uploading") == [(1,)]
    assert query(before, "SELECT count(*) FROM held WHERE kind = ? AND chain_hash = ?", *name) == [(0,)]


def bring_along(data: Path) -> None:
    """Bring store.db along, as a start does before all else."""
    with closing(sqlite3.connect(data / "store.db", isolation_level=None)) as connection:
        migrate(connection)


@pytest.mark.parametrize("schema", older.SCHEMAS)
async def test_offline_tools_ask_for_a_start_and_recover_takes_it_as_it_is(before: Path, schema: int) -> None:
    with pytest.raises(CannotCheck, match="start the store once"):
        check(before)
    with pytest.raises(CannotCheck, match="start the store once"):
        usage(before)
    new = before.with_name("recovered")
    found = recover(before, new)
    assert found.is_whole and {agent.key.agent_id for agent in found.agents} >= {"ada", "eve", "bob"}
    assert query(new, "PRAGMA user_version") == [(len(MIGRATIONS),)] and whats(new) == set()


@pytest.mark.parametrize("schema", [3])
async def test_an_older_store_refuses_what_was_brought_along(before: Path, schema: int) -> None:
    """By the version of store.db; the copy in warm.db has one of its own."""
    Store(before, CollectorRegistry()).close()
    for name, version in (("store.db", len(MIGRATIONS)), ("warm.db", warm_database.VERSION)):
        with closing(sqlite3.connect(before / name)) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (version,)


@pytest.mark.parametrize("schema", older.SCHEMAS)
async def test_who_was_there_before_goes_on(before: Path, schema: int) -> None:
    async with running(before, ROOMY) as store:
        opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key("eve")))
        made = await store.cache.CommitTurn(kv.turn([9], opened.version, len(opened.ledger.token_ids), kv.key("eve")))
        assert made.version.version == opened.version.version + 1
        await store.delete()
        check_directory(store)
    assert whats(before) == set()
