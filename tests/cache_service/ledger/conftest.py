"""The ledger on each engine that there is: SQLite in a file of its own, PostgreSQL in a schema of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_service.ledger.database import Database
from cache_service.ledger.ledgers import Ledgers

from ..conftest import ENGINES

Engine = Ledgers


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "postgres":
        found: Engine = request.getfixturevalue("postgres")
        yield found
        return
    database = Database(tmp_path / "store.db")
    database.open()
    yield database
    database.close()
