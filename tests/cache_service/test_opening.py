"""A store looks at a directory before it touches it: its owner, its version, and whether it is whole."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from cache_service.files import warm_database
from cache_service.files.directory import DirectoryUnusable
from cache_service.ledger import schema
from cache_service.ledger.schema import ForeignDatabase, SchemaTooNew
from cache_service.offline.database import DatabaseDamaged
from cache_service.store import Store

from . import kv
from .conftest import running
from .offline.directory import everything, fill, zero_table
from .process import ready, spawn


def state(data: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path): (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in (data, *data.rglob("*"))
    }


def refused(data: Path, error: type[Exception], match: str) -> None:
    """Twice, and nothing is touched."""
    before = state(data)
    for _ in range(2):
        with pytest.raises(error, match=match):
            Store(data, CollectorRegistry())
        assert state(data) == before


@pytest.mark.parametrize("folder", ["staging", "blocks"])
def test_a_directory_that_holds_something_else_is_not_touched(data: Path, folder: str) -> None:
    (data / folder).mkdir(parents=True, mode=0o755)
    (data / folder / "thesis.txt").write_bytes(b"x")
    (data / "thesis.txt").write_bytes(b"x")
    data.chmod(0o755)
    refused(data, DirectoryUnusable, "is not empty and not Agentmem's; choose a directory of its own as --data")


def test_only_the_stores_own_kind_of_files_is_swept(data: Path) -> None:
    Store(data, CollectorRegistry()).close()
    kept = []
    staging = data / "staging"
    for name in ("notes.txt", "a.safetensors.txt"):
        kept.append(staging / name)
        kept[-1].write_bytes(b"x")
    (staging / "deep.safetensors").mkdir()
    kept.append(staging / "deep.safetensors" / "a.safetensors")
    kept[-1].write_bytes(b"x")
    (staging / "link.safetensors").symlink_to(kept[0])
    (staging / "left.safetensors").write_bytes(b"x")
    Store(data, CollectorRegistry()).close()
    assert all(path.exists() for path in kept)
    assert not [*data.rglob("left.*")]


def test_names_that_come_before_the_store_are_its_own(data: Path) -> None:
    (data / "run").mkdir(parents=True)
    (data / "worker").mkdir()
    (data / "up.lock").touch()
    data.chmod(0o755)
    Store(data, CollectorRegistry()).close()
    assert data.stat().st_mode & 0o777 == 0o700


def test_another_programs_database_is_not_touched(data: Path) -> None:
    data.mkdir()
    with closing(sqlite3.connect(data / "store.db")) as connection:
        connection.execute("CREATE TABLE sales (day TEXT)")
    refused(data, ForeignDatabase, "another program's database")


@pytest.mark.parametrize(
    ("version", "error", "match"),
    [
        (schema.version() + 1, SchemaTooNew, "use a newer agentmem"),
        (
            schema.FIRST - 1,
            ForeignDatabase,
            "of an agentmem before this one.*Choose another --data.*agentmem that made it",
        ),
    ],
)
def test_another_format_is_not_touched(data: Path, version: int, error: type[Exception], match: str) -> None:
    """Not a byte, no mode, no lock, no WAL."""
    data.mkdir(mode=0o755)
    with closing(sqlite3.connect(data / "store.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE other (x)")
        connection.execute(f"PRAGMA user_version = {version}")
    refused(data, error, match)


async def test_the_first_page_has_the_version_also_where_the_first_store_was_killed(data: Path) -> None:
    async with running(data):
        for name, version in (("store.db", schema.version()), ("warm.db", warm_database.VERSION)):
            page = schema.first_page(data / name)
            assert page is not None and page.user_version == version and page.has_tables
    assert schema.first_page(data / "absent") is None


@pytest.mark.slow
async def test_a_damaged_database_is_refused_with_what_recovers_it(data: Path) -> None:
    await fill(data)
    zero_table(data, "segments")
    data.chmod(0o755)
    before = everything(data)
    with pytest.raises(DatabaseDamaged, match=f"agentmem store recover {data} {data}-recovered"):
        Store(data, CollectorRegistry())
    assert everything(data) == before
    process = await spawn(data)
    _, problem = await process.communicate()
    assert process.returncode == 1 and b"store recover" in problem and b"Traceback" not in problem


async def test_a_store_starts_while_another_program_reads_and_scrubs_later(data: Path) -> None:
    await fill(data)
    with closing(sqlite3.connect(data / "store.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM agents").fetchall()
        async with ready(data) as (process, _):
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        async with running(data) as store:
            await store.cache.CommitTurn(kv.turn([1], agent=kv.key("new")))
            assert store.store._database.scrub_owed or not (data / "store.db-wal").stat().st_size
            reader.execute("COMMIT")
            await store.store.upkeep(0)
            assert not store.store._database.scrub_owed


async def test_a_database_that_is_held_is_told_to_be_tried_again(data: Path) -> None:
    data.mkdir(mode=0o700)
    with closing(sqlite3.connect(data / "store.db", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        process = await spawn(data)
        _, problem = await process.communicate()
    assert process.returncode == 75 and b"Traceback" not in problem and b"another program" in problem


async def test_a_start_that_has_nothing_to_write_writes_nothing(data: Path) -> None:
    await fill(data)
    wal = data / "store.db-wal"
    store = Store(data, CollectorRegistry())
    try:
        assert wal.stat().st_size == 0
    finally:
        store.close()
