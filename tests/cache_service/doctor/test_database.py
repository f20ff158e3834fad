import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from agentmem.process.checkup import Finding, State
from cache_service.doctor import clock, database
from cache_service.ledger import schema
from cache_service.ledger.schema import MIGRATIONS

from ..process import ready


def only(findings: object) -> Finding:
    (finding,) = findings  # type: ignore[misc]
    return finding


def tree(root: Path) -> dict[str, tuple[int, int, int]]:
    """Names, modes, sizes and times of all that is there."""
    found = {str(path.relative_to(root)): path.stat() for path in [root, *root.rglob("*")]}
    return {name: (each.st_mode, each.st_size, each.st_mtime_ns) for name, each in found.items()}


def damage(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def test_a_whole_database_is_not_touched(data: Path) -> None:
    before = tree(data)
    found = only(database(data, held=False))
    assert found.state is State.OK and "3 agents" in found.found
    assert f"schema {len(MIGRATIONS)}, " in found.found
    assert tree(data) == before


def test_none_yet(tmp_path: Path) -> None:
    assert only(database(tmp_path, held=False)).state is State.OK
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("offset", "content"), [(0, b"\0" * 16), (0, b"\xff" * 100), (16, b"\x12\x34"), (100, b"\xff" * 8)]
)
def test_a_damaged_header(data: Path, offset: int, content: bytes) -> None:
    damage(data / "store.db", offset, content)
    found = only(database(data, held=False))
    assert found.state is State.PROBLEM and "agentmem store recover" in found.advice


def test_a_database_of_a_newer_program(data: Path) -> None:
    damage(data / "store.db", 60, (99).to_bytes(4, "big"))
    found = only(database(data, held=False))
    assert found.state is State.PROBLEM and "version 99" in found.found


def test_a_database_of_another_program(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    assert "another program" in only(database(tmp_path, held=False)).found


def test_a_log_that_nobody_has_open_is_left_alone(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, "", ""))
    with closing(sqlite3.connect(data / "store.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA user_version = 2")
        assert (data / "store.db-wal").stat().st_size
        (data / "copy").mkdir()
        for name in ("store.db", "store.db-wal"):
            (data / "copy" / name).write_bytes((data / name).read_bytes())
    before = tree(data / "copy")
    found = only(database(data / "copy", held=False))
    assert found.state is State.OK and "was killed" in found.found and "schema 2 of" in found.found
    assert tree(data / "copy") == before


async def test_while_a_store_runs(data: Path) -> None:
    async with ready(data):
        found = only(database(data, held=True))
    assert found.state is State.OK and "3 agents" in found.found


def test_a_clock_that_went_back(data: Path) -> None:
    ahead = time.time() + 7200
    os.utime(data / "store.db", (ahead, ahead))
    assert only(database(data, held=False)).state is State.OK
    assert only(clock(data)).state is State.WARNING
