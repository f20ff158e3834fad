"""The thread that owns SQLite: all or nothing, durable settings, private files, and errors that say what to do."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from agentmem import tracing
from agentmem.errors import Internal, ResourceExhausted, Unavailable
from cache_service.ledger import schema
from cache_service.ledger.database import Database
from cache_service.offline.check import check
from cache_service.offline.findings import CannotCheck


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "store.db")
    database.open()
    yield database
    database.close()


def put(connection: sqlite3.Connection, name: str, payload: bytes = b"") -> None:
    connection.execute(
        "INSERT INTO workflow_records (namespace, workflow_id, version, events, bytes, summary)"
        " VALUES ('n', ?, 1, 0, 0, ?)",
        (name, payload),
    )


def pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def names(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT workflow_id FROM workflow_records ORDER BY id")]


async def test_work_is_done_for_the_request_that_asks(database: Database) -> None:
    trace = tracing.Trace("a")
    with tracing.serving(trace):
        assert await database.read(lambda _: tracing.current()) == trace
        assert await database.write(lambda _: tracing.current()) == trace
    assert await database.read(lambda _: tracing.current()) is None


async def test_reads_and_writes_do_not_wait_for_each_other(database: Database) -> None:
    """A read sees one state, the last that was committed when it began; it cannot write."""
    await database.write(lambda c: put(c, "a"))
    reading, written = threading.Event(), threading.Event()

    def slow_read(connection: sqlite3.Connection) -> tuple[list[str], list[str]]:
        before = names(connection)
        reading.set()
        assert written.wait(10)
        return before, names(connection)

    slow = asyncio.ensure_future(database.read(slow_read))
    await asyncio.to_thread(reading.wait, 10)
    await database.write(lambda c: put(c, "b"))
    assert await database.read(names) == ["a", "b"]
    written.set()
    assert await slow == (["a"], ["a"])

    def slow_write(connection: sqlite3.Connection) -> None:
        put(connection, "c")
        reading.set()
        assert written.wait(10)

    reading.clear()
    written.clear()
    writing = asyncio.ensure_future(database.write(slow_write))
    await asyncio.to_thread(reading.wait, 10)
    assert await database.read(names) == ["a", "b"]
    written.set()
    await writing
    assert await database.read(names) == ["a", "b", "c"]
    with pytest.raises(Internal, match="readonly"):
        await database.read(lambda c: put(c, "d"))


async def test_a_scrub_waits_for_reads_and_keeps_new_ones_waiting(database: Database, tmp_path: Path) -> None:
    await database.write(lambda c: put(c, "a"))
    reading, done = threading.Event(), threading.Event()

    def slow_read(connection: sqlite3.Connection) -> list[str]:
        found = names(connection)
        reading.set()
        assert done.wait(10)
        return found

    slow = asyncio.ensure_future(database.read(slow_read))
    await asyncio.to_thread(reading.wait, 10)
    with pytest.raises(Unavailable, match="is being read"):
        await asyncio.wrap_future(database.scrub(patient=False))
    scrub = asyncio.wrap_future(database.scrub())
    late = asyncio.ensure_future(database.read(names))
    done.set()
    await asyncio.gather(slow, scrub, late)
    assert slow.result() == late.result() == ["a"]
    assert (tmp_path / "store.db-wal").stat().st_size == 0


def test_settings_that_durability_and_erasure_rest_on(database: Database) -> None:
    found = {
        name: database.write_blocking(partial(pragma, name=name))
        for name in ("journal_mode", "synchronous", "secure_delete", "foreign_keys", "auto_vacuum", "user_version")
    }
    assert found == {
        "journal_mode": "wal",
        "synchronous": 2,
        "secure_delete": 1,
        "foreign_keys": 1,
        "auto_vacuum": 2,
        "user_version": schema.version(),
    }


async def test_a_full_disk_is_resource_exhausted_and_the_next_write_works(database: Database) -> None:
    await database.write(lambda c: put(c, "before"))
    pages = await database.read(lambda c: c.execute("PRAGMA page_count").fetchone()[0])
    await database.write(lambda c: c.execute(f"PRAGMA max_page_count = {pages + 1}").fetchall())
    with pytest.raises(ResourceExhausted):
        await database.write(lambda c: put(c, "big", bytes(100_000)))
    assert await database.read(names) == ["before"]
    await database.write(lambda c: c.execute("PRAGMA max_page_count = 1000000").fetchall())
    await database.write(lambda c: put(c, "after"))
    assert await database.read(names) == ["before", "after"]


async def test_erasing_while_another_program_reads_asks_for_a_retry(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await database.write(lambda c: c.execute("PRAGMA busy_timeout = 10").fetchall())
    await database.write(lambda c: put(c, "a"))
    reader = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM agents").fetchall()
    await database.write(lambda c: put(c, "b"))
    with pytest.raises(Unavailable):
        await asyncio.wrap_future(database.scrub())
    reader.close()
    await asyncio.wrap_future(database.scrub())
    assert (tmp_path / "store.db-wal").stat().st_size == 0


def test_notes_join_the_next_transaction_and_the_last_one_at_close(tmp_path: Path) -> None:
    database = Database(tmp_path / "store.db")
    database.open()
    noted: list[str] = []

    def flush(connection: sqlite3.Connection) -> None:
        while noted:
            put(connection, noted.pop())

    database.before_commit.append(flush)
    noted.append("with a write")
    database.write_blocking(lambda c: put(c, "write"))
    noted.append("at close")
    database.close()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        assert names(connection) == ["write", "with a write", "at close"]
    connection.close()


def test_an_older_schema_is_brought_along_script_by_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that fails leaves nothing of it, and what those before it made."""

    def opened(*more: str) -> list[str]:
        monkeypatch.setattr(schema, "SCRIPTS", (*scripts, *more))
        database = Database(tmp_path / "store.db")
        database.open()
        try:
            assert database.read_blocking(partial(pragma, name="user_version")) == schema.FIRST + len(more)
            database.write_blocking(partial(put, name=f"{len(more)}"))
            return database.read_blocking(names)
        finally:
            database.close()

    scripts = schema.SCRIPTS
    second = "ALTER TABLE workflow_records ADD COLUMN planted TEXT; UPDATE workflow_records SET workflow_id = 'old';"
    assert opened() == ["0"]
    assert schema.is_older(tmp_path / "store.db") is False
    monkeypatch.setattr(schema, "SCRIPTS", (*scripts, second))
    assert schema.is_older(tmp_path / "store.db")
    with pytest.raises(CannotCheck, match=r"an older agentmem made .* start the store once"):
        check(tmp_path)
    with pytest.raises(sqlite3.OperationalError, match="syntax error"):
        opened(second, "CREATE TABLE half (x); NOT EVEN SQL;")
    assert opened(second) == ["old", "1"]
    assert opened(second, "CREATE TABLE half (x);") == ["old", "1", "2"]
