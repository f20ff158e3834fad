"""What is copied between the engines is all that both have."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from cache_service.ledger.database import Database
from cache_service.ledger.postgres.settings import Settings
from cache_service.offline.cluster.rows import LEDGERS, OBJECTS, Table
from cache_service.offline.cluster.server import opened
from tests.postgres import Server

_MADE_THERE = {"checksum", "node"}
"""Columns that whoever writes a row gives it."""


@pytest.mark.parametrize("table", [*LEDGERS, *OBJECTS], ids=lambda table: table.name)
def test_all_columns_are_copied(table: Table, server: Settings, postgres_server: Server, tmp_path: Path) -> None:
    drawn = _MADE_THERE | ({"id"} - set(table.columns))
    database = Database(tmp_path / "store.db")
    database.open()
    database.close()
    with sqlite3.connect(tmp_path / "store.db") as store:
        own = {row[1] for row in store.execute(f"PRAGMA table_info({table.name})")}
    with opened(server, migrates=True), postgres_server.connect() as connection:
        rows = connection.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
            (server.schema, table.name),
        )
        shared = {name for (name,) in rows}
    assert own - drawn == shared - drawn == set(table.columns)
