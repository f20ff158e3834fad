"""The ledger on both engines: SQLite in a file of its own, PostgreSQL in a schema of its own on a real server."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_service.ledger.database import Database
from cache_service.ledger.postgres.database import Postgres
from cache_service.ledger.postgres.settings import Settings, Survives
from tests.postgres import Server

Engine = Database | Postgres

_numbers = itertools.count()


@pytest.fixture
def postgres_settings(postgres_server: Server) -> Iterator[Settings]:
    """A place for one ledger."""
    schema = f"test {os.getpid()} {next(_numbers)}"
    yield Settings(postgres_server.conninfo, schema, survives=Survives.NOTHING, writers=4, readers=2)
    with postgres_server.connect() as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())


@pytest.fixture
def postgres(postgres_settings: Settings) -> Iterator[Postgres]:
    """A ledger on PostgreSQL."""
    postgres = Postgres(postgres_settings)
    postgres.open()
    yield postgres
    postgres.close()


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """A ledger on each engine."""
    if request.param == "postgres":
        found: Postgres = request.getfixturevalue("postgres")
        yield found
        return
    database = Database(tmp_path / "store.db")
    database.open()
    yield database
    database.close()
