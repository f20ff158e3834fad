"""The tables of the shared ledger, and how an older one becomes one of this version.

The row of `schema_version` counts the scripts of `migrations/` that were applied, as `PRAGMA user_version` does in
store.db. A published script never changes; a change is a new script at the end.
"""

from importlib import resources
from typing import Any, Final

import psycopg
from psycopg import sql

from cache_service.ledger.schema import SchemaTooNew

MIGRATIONS: Final = tuple(
    path.read_text(encoding="utf-8")
    for path in sorted(resources.files(__package__).joinpath("migrations").iterdir(), key=lambda path: path.name)
    if path.name.endswith(".sql")
)
"""The scripts of `migrations/`, in the order of their numbers."""
_LOCK: Final = 0x6167656E746D656D
"""The advisory lock of who creates or migrates: nodes that start together do it one after the other."""


def migrate(connection: "psycopg.Connection[tuple[Any, ...]]", schema: str) -> None:
    """Bring the tables in `schema` to this version, creating them first; one transaction, whatever happens.

    Raises SchemaTooNew, and psycopg.Error: the role must own the schema, or may create it.
    """
    with connection.transaction():
        # Each statement has to see what another node has migrated meanwhile, whatever the server's default is.
        connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.execute("SET LOCAL statement_timeout = 0")  # it may wait for another node's migration
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        if connection.execute("SELECT to_regnamespace(quote_ident(%s))", (schema,)).fetchone() == (None,):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")
        row = connection.execute("SELECT version FROM schema_version").fetchone()
        applied = 0 if row is None else row[0]
        if applied > len(MIGRATIONS):
            raise SchemaTooNew(
                f"the shared ledger's schema has version {applied}, this program knows {len(MIGRATIONS)};"
                " use a newer agentmem"
            )
        for script in MIGRATIONS[applied:]:
            connection.execute(script.encode())
        if row is None:
            connection.execute("INSERT INTO schema_version VALUES (%s)", (len(MIGRATIONS),))
        elif applied < len(MIGRATIONS):
            connection.execute("UPDATE schema_version SET version = %s", (len(MIGRATIONS),))
