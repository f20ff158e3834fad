"""The tables of the shared ledger, and how older ones become those of this version while older nodes serve on.

A step has two scripts in `migrations/`. NN_name.sql expands: it adds what this version needs, and takes nothing away
that the one before uses; it runs when the first newer node joins. NN_name.contract.sql, if there is one, takes away
what only older ones have used; it runs once no node is there any more that is older. The row of `schema_version` counts
the steps that were expanded, and says from which version on a program can use the tables. A published script never
changes; a change is a new step at the end.
"""

from collections.abc import Sequence
from importlib import resources
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from cache_service.connection import Connection
from cache_service.ledger.schema import SchemaTooNew

_LOCK: Final = 0x6167656E746D656D
"""The advisory lock of who creates or migrates: nodes that start together do it one after the other."""


_FROM_ANOTHER_SERVER: Final = (
    "UPDATE kv_changes SET xid = pg_current_xact_id()::text::bigint"
    " WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
)
"""What a dump has brought from a server that had run more transactions: here nobody would ever have followed it."""


class Step(NamedTuple):
    """From one version of the schema to the next. Without a `contract` the one before can use the tables for good."""

    expand: str
    contract: str = ""


def _steps() -> tuple[Step, ...]:
    scripts = {
        path.name.removesuffix(".sql"): path.read_text(encoding="utf-8")
        for path in resources.files(__package__).joinpath("migrations").iterdir()
        if path.name.endswith(".sql")
    }
    names = sorted(name for name in scripts if not name.endswith(".contract"))
    return tuple(Step(scripts[name], scripts.get(f"{name}.contract", "")) for name in names)


STEPS: Final = _steps()
"""In the order of their numbers; the version that this program knows is how many there are."""


def migrate(connection: "psycopg.Connection[tuple[Any, ...]]", schema: str, steps: Sequence[Step]) -> None:
    """Bring the tables in `schema` to this version, creating them first; one transaction, whatever happens.

    Newer ones are left as they are, if this version can use them. Raises SchemaTooNew, and psycopg.Error: the role must
    own the schema, or may create it.
    """
    with connection.transaction():
        # Each statement has to see what another node has migrated meanwhile, whatever the server's default is.
        connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.execute("SET LOCAL statement_timeout = 0")  # it may wait for another node's migration
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        if connection.execute("SELECT to_regnamespace(quote_ident(%s))", (schema,)).fetchone() == (None,):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        connection.execute(
            "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL, usable BIGINT NOT NULL)"
        )
        row = connection.execute("SELECT version, usable FROM schema_version").fetchone()
        applied, usable = (0, 0) if row is None else row
        _refuse(applied, usable, steps)
        for step in steps[applied:]:
            connection.execute(step.expand.encode())
        connection.execute(_FROM_ANOTHER_SERVER)
        if row is None:
            connection.execute("INSERT INTO schema_version VALUES (%s, 1)", (len(steps),))
        elif applied < len(steps):
            connection.execute("UPDATE schema_version SET version = %s", (len(steps),))


def exists(connection: Connection) -> bool:
    """Whether there are tables of a ledger. A function of a connection, as what follows."""
    return connection.execute("SELECT to_regclass('schema_version')").fetchone()[0] is not None


def refuse_newer(connection: Connection, steps: Sequence[Step]) -> None:
    """Raise SchemaTooNew for tables that this version cannot use."""
    applied, usable = connection.execute("SELECT version, usable FROM schema_version").fetchone()
    _refuse(applied, usable, steps)


def _refuse(applied: int, usable: int, steps: Sequence[Step]) -> None:
    if usable > len(steps):
        raise SchemaTooNew(
            f"the shared ledger's schema has version {applied}, and programs that know version {usable} or newer"
            f" can use it; this one knows {len(steps)}; use a newer agentmem"
        )


def contract(connection: Connection, oldest: int, steps: Sequence[Step]) -> bool:
    """Take away what no node uses any more, the oldest of which knows version `oldest`; whether there was anything.

    A function of a connection, in one transaction.
    """
    _, usable = connection.execute("SELECT version, usable FROM schema_version").fetchone()
    wanted = max((number for number, step in enumerate(steps[:oldest], 1) if step.contract), default=1)
    if wanted <= usable:
        return False
    connection.execute("SELECT pg_advisory_xact_lock(?)", (_LOCK,))
    _, usable = connection.execute("SELECT version, usable FROM schema_version").fetchone()
    for step in steps[usable:wanted]:
        if step.contract:
            connection.execute(step.contract)
    connection.execute("UPDATE schema_version SET usable = ? WHERE usable < ?", (wanted, wanted))
    return bool(wanted > usable)
