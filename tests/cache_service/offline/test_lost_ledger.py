"""Files of KV without their ledger: nothing is served and nothing deleted, and every command says the same."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from cache_service.ledger.database import Database
from cache_service.offline.check import check
from cache_service.offline.commands import main
from cache_service.offline.database import DatabaseDamaged
from cache_service.offline.findings import CannotCheck
from cache_service.offline.recover import recover
from cache_service.store import Store

from .. import kv
from ..conftest import running
from .directory import ADA, everything, fill, publish

Loss = Callable[[Path], None]


def missing(data: Path) -> None:
    (data / "store.db").unlink()


def empty(data: Path) -> None:
    (data / "store.db").write_bytes(b"")


def without_tables(data: Path) -> None:
    (data / "store.db").unlink()
    with closing(sqlite3.connect(data / "store.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")


def anew(data: Path) -> None:
    (data / "store.db").unlink()
    database = Database(data / "store.db")
    database.open()
    database.close()


LOSSES = [missing, empty, without_tables, anew]


def files(data: Path) -> dict[str, bytes]:
    return {name: content for name, (_, content) in everything(data).items() if name.endswith(".safetensors")}


def start(data: Path) -> None:
    Store(data, CollectorRegistry()).close()


@pytest.mark.parametrize("lose", LOSSES)
async def test_a_store_refuses_files_without_their_ledger_and_touches_nothing(data: Path, lose: Loss) -> None:
    await fill(data)
    lose(data)
    before = everything(data)
    for _ in range(2):
        with pytest.raises(DatabaseDamaged, match=r"files of KV beside it.*nothing was changed.*choose another --data"):
            start(data)
    assert everything(data) == before


@pytest.mark.parametrize("lose", LOSSES)
async def test_check_says_what_to_do(data: Path, lose: Loss) -> None:
    await fill(data)
    (data / "store.sock.lock").unlink(missing_ok=True)
    lose(data)
    before = files(data)
    with pytest.raises(CannotCheck, match="choose another --data"):
        check(data, repair=True)
    result = CliRunner().invoke(main, ["check", "--repair", str(data)])
    assert result.exit_code == 2 and "choose another --data" in result.output
    assert files(data) == before


async def test_putting_the_database_back_is_enough(data: Path) -> None:
    await fill(data)
    kept = data.with_name("kept.db")
    shutil.move(data / "store.db", kept)
    with pytest.raises(DatabaseDamaged):
        start(data)
    shutil.move(kept, data / "store.db")
    assert check(data).is_clean
    start(data)


async def test_a_log_without_its_database_is_damage(data: Path) -> None:
    """SQLite would delete it."""
    async with running(data) as store:
        await store.cache.CommitTurn(kv.turn(ADA))
        shutil.copytree(data, killed := data.with_name("killed"), ignore=shutil.ignore_patterns("*.sock", "lock"))
    (killed / "store.db").write_bytes(b"")
    log = (killed / "store.db-wal").read_bytes()
    assert log and not files(killed)
    with pytest.raises(DatabaseDamaged, match=r"store\.db-wal is there"):
        start(killed)
    with pytest.raises(CannotCheck, match="nothing can be recovered"):
        recover(killed, data.with_name("new"))
    assert (killed / "store.db-wal").read_bytes() == log and not data.with_name("new").exists()


async def test_directories_that_were_never_used_start(data: Path) -> None:
    """An interrupted first start, an early worker and a disk's own folder leave such files."""
    for names in ([], ["store.db"], ["staging/0a-1.safetensors"], ["staging/0b-1.safetensors", "lost+found/a"]):
        shutil.rmtree(data, ignore_errors=True)
        for name in names:
            (data / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (data / name).touch(0o600)
        start(data)
        start(data)


async def test_orphans_of_a_directory_that_is_empty_now_are_deleted(data: Path) -> None:
    async with running(data) as store:
        version = (await store.cache.CommitTurn(kv.turn(ADA))).version
        await publish(store, ADA, version, "ada")
        left = files(data)
        await store.delete()
    for name, content in left.items():
        Path(name).write_bytes(content)
    start(data)
    assert not files(data)
