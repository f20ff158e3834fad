"""Opening a ledger on a server: its tables, those of another version, and servers that could lose what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import get_args

import psycopg
import pytest

from agentmem.errors import Unavailable
from agentmem.validation import AgentKey
from cache_service.cluster.postgres import schema
from cache_service.cluster.postgres.database import Postgres
from cache_service.cluster.postgres.settings import Settings, UnsafeServer, _problem, _Server
from cache_service.connection import Connection
from cache_service.ledger import kv_changes, turns
from cache_service.ledger.database import Database
from cache_service.ledger.schema import TABLES, ForeignDatabase, SchemaTooNew
from cache_service.settings import Survives
from tests.cache_service.ledger.rows import NOW, tokens, turn


@pytest.mark.parametrize("options", ["-c client_min_messages=error", "-c default_transaction_isolation=serializable"])
def test_warnings_and_fresh_reads_do_not_depend_on_a_roles_settings(postgres_settings: Settings, options: str) -> None:
    """A wait for the standby that was cancelled is known by its warning; nodes that migrate read what others did."""
    node = replace(postgres_settings, conninfo=f"{postgres_settings.conninfo} options='{options}'")
    nodes = [Postgres(node) for _ in range(4)]
    with ThreadPoolExecutor(len(nodes)) as pool:
        for opened in [pool.submit(each.open) for each in nodes]:
            opened.result(60)
    said = nodes[0].read_blocking(lambda c: c.execute("SELECT current_setting('client_min_messages')").fetchone())
    assert said == ("warning",)
    for each in nodes:
        each.close()


def test_an_older_program_serves_on_what_a_newer_one_has_added_to(postgres_settings: Settings) -> None:
    """Running, and started again, until a newer one takes something away, which it does not while older nodes serve."""
    older = Postgres(postgres_settings)
    older.open()
    first = older.write_blocking(turns.commit, turn(1), NOW).version
    more = (*schema.STEPS, schema.Step("ALTER TABLE agents ADD COLUMN more BIGINT NOT NULL DEFAULT 7"))
    newer = Postgres(postgres_settings, more)
    newer.open()
    assert newer.read_blocking(lambda c: c.execute("SELECT more FROM agents").fetchall()) == [(7,)]
    assert older.write_blocking(turns.commit, replace(turn(2), base=first, keep_tokens=1), NOW).version.number == 2
    again = Postgres(postgres_settings)
    again.open()
    assert again.read_blocking(tokens) == [1, 2]
    newest = Postgres(postgres_settings, (*more, schema.Step("ALTER TABLE agents DROP COLUMN label", takes=True)))
    serving = "INSERT INTO nodes SELECT 'a', 1, '', '', 9000000000000000000, 0, ''"
    newer.write_blocking(lambda c: c.execute(serving) and None)
    with pytest.raises(Unavailable, match="stop them"):
        newest.open()
    newer.write_blocking(lambda c: c.execute("DELETE FROM nodes") and None)
    newest.open()
    late = Postgres(postgres_settings)
    with pytest.raises(SchemaTooNew, match=f"version {schema.FIRST + 2}.* knows {schema.FIRST}"):
        late.open()
    for each in (older, newer, again, newest, late):
        each.close()


def test_tables_of_before_are_refused(postgres_settings: Settings) -> None:
    postgres = Postgres(postgres_settings)
    postgres.open()
    postgres.write_blocking(lambda c: c.execute("UPDATE schema_version SET version = 4, usable = 1") and None)
    with pytest.raises(ForeignDatabase, match=r"schema 4, .* another database for the cluster"):
        Postgres(postgres_settings).open()
    postgres.close()


def test_changes_of_kv_from_a_server_that_was_ahead_are_followed(postgres_settings: Settings) -> None:
    """Ids of transactions come along with a dump, and are far ahead on a younger server."""
    before = Postgres(postgres_settings)
    before.open()
    key = AgentKey("n", "gone", "m")
    before.write_blocking(kv_changes.erase, key, "u")
    before.write_blocking(lambda c: c.execute("UPDATE kv_changes SET xid = xid + 1000000") and None)
    assert before.read_blocking(kv_changes.after, 0).changes == []
    before.close()
    after = Postgres(postgres_settings)
    after.open()
    [change] = after.read_blocking(kv_changes.after, 0).changes
    assert change.agent_id == "gone" and change.id <= after.read_blocking(kv_changes.last)
    after.close()


def test_a_migration_that_fails_leaves_the_tables_of_before(postgres_settings: Settings) -> None:
    broken = Postgres(postgres_settings, (*schema.STEPS, schema.Step("CREATE TABLE half (id BIGINT)"), _FAILS))
    with pytest.raises(psycopg.errors.UndefinedColumn):
        broken.open()
    broken.close()
    whole = Postgres(postgres_settings)
    whole.open()
    assert whole.read_blocking(lambda c: c.execute("SELECT to_regclass('half')").fetchone()) == (None,)
    whole.close()


_FAILS = schema.Step("SELECT nothing")


def column(connection: Connection, statement: str, value: str) -> set[str]:
    return {found for (found,) in connection.execute(statement, (value,))}


def test_the_tables_are_those_of_sqlite(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> None:
    database = Database(tmp_path_factory.mktemp("sqlite") / "store.db")
    database.open()
    there = "SELECT name FROM pragma_table_info(?)"
    here = "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = ?"
    only_here = {"agents": {"node"}, "kv_changes": {"xid", "made"}}
    for table in re.findall(r"CREATE TABLE (\w+)", TABLES):
        known = database.read_blocking(column, there, table) | only_here.get(table, set())
        assert postgres.read_blocking(column, here, table) == known, table
    database.close()


@pytest.mark.parametrize("survives", ["server", "crash"])
def test_a_server_that_could_lose_turns_is_refused(postgres_settings: Settings, survives: Survives) -> None:
    """The one of these tests does not sync its disk."""
    with pytest.raises(UnsafeServer, match="fsync = off"):
        Postgres(replace(postgres_settings, survives=survives)).open()


def test_no_server_is_unavailable(postgres_settings: Settings) -> None:
    nowhere = replace(postgres_settings, conninfo="host=/nowhere dbname=postgres", connect_seconds=1, known_seconds=0)
    postgres = Postgres(nowhere)
    with pytest.raises(Unavailable, match="cannot be used"):
        postgres.open()
    with pytest.raises(Unavailable, match="cannot be used"):
        postgres.commit_blocking(turns.commit, turn(1), NOW)


def test_a_single_machine_imports_nothing_of_it() -> None:
    program = (
        "import sys, cache_service.process, cache_service.offline.commands, gateway.cli.main\n"
        "print([name for name in sys.modules if name.startswith(('psycopg', 'cache_service.cluster.postgres'))])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.stdout.strip(), ended.stderr) == ("[]", "")


GOOD = _Server(170_004, "UTF8", "on", "ANY 1 (a, b)", "on")


@pytest.mark.parametrize("survives", get_args(Survives))
def test_a_server_with_a_synchronous_standby_is_taken(survives: Survives) -> None:
    for waits in ("on", "remote_apply", "remote_write"):
        assert _problem(GOOD._replace(synchronous_commit=waits), survives) == ""


@pytest.mark.parametrize(
    ("server", "refused", "advice"),
    [
        (GOOD._replace(version=130_020), get_args(Survives), "version 14 or newer"),
        (GOOD._replace(encoding="SQL_ASCII"), get_args(Survives), "ENCODING 'UTF8'"),
        (GOOD._replace(synchronous_commit="off"), ("server", "crash"), "set it to on"),
        (GOOD._replace(synchronous_commit="local"), ("server", "crash"), "set it to on"),
        (GOOD._replace(fsync="off"), ("server", "crash"), "fsync = off"),
        (GOOD._replace(standbys=" "), ("server",), "synchronous_mode_strict"),
    ],
)
def test_a_server_that_could_lose_turns_is_refused_with_advice(
    server: _Server, refused: tuple[Survives, ...], advice: str
) -> None:
    for survives in get_args(Survives):
        problem = _problem(server, survives)
        assert bool(problem) == (survives in refused)
        assert advice in problem or not problem
