"""Settings of a server, and the refusal of one that could lose acknowledged commits."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import psycopg

from cache_service.cluster.postgres.silence import Watched
from cache_service.settings import Survives

OLDEST: Final = 140_000
_WAITS: Final = ("on", "remote_apply", "remote_write")
"""Values of synchronous_commit with which a commit waits for the disk and named standbys."""


class UnsafeServer(Exception):
    """The message says what to do."""


@dataclass(frozen=True)
class Settings:
    """Limits are in seconds."""

    conninfo: str = field(repr=False)
    """libpq's, maybe with a password. Of several hosts one that can be written is taken."""
    schema: str = "agentmem"
    node: str = ""
    survives: Survives = "server"
    writers: int = 8
    readers: int = 4
    statement_seconds: float = 30.0
    """Includes waits for locks. PostgreSQL sets COMMIT no limit."""
    idle_seconds: float = 10.0
    """A node that hangs in a transaction holds no agent for longer."""
    connect_seconds: float = 5.0
    silent_seconds: float = 5.0
    """Then another connection asks whether the server works on the statement."""
    known_seconds: float = 20.0
    """For repetitions of a commit of unknown outcome."""


class _Server(NamedTuple):
    version: int
    encoding: str
    synchronous_commit: str
    standbys: str
    fsync: str


_ASKED: Final = (
    "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'),"
    " current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), current_setting('fsync'),"
    " set_config('search_path', quote_ident(%(schema)s), false),"
    " set_config('agentmem.node', %(node)s, false),"
    " set_config('client_min_messages', 'warning', false),"  # a cancelled wait is a warning
    " set_config('statement_timeout', %(statement)s, false),"
    " set_config('idle_in_transaction_session_timeout', %(idle)s, false),"
    " pg_backend_pid(), (SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid())"
)
_AT_WORK: Final = (
    "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND backend_start::text = %s AND state NOT LIKE 'idle%%'"
)


def connect(settings: Settings) -> "psycopg.Connection[tuple[Any, ...]]":
    """Connect to the server that can be written, and check its settings: they change with a failover.

    Raises psycopg.OperationalError and UnsafeServer.
    """
    connection = _connected(settings)
    try:
        times = {
            "statement": f"{round(settings.statement_seconds * 1000)}ms",
            "idle": f"{round(settings.idle_seconds * 1000)}ms",
        }
        row = connection.execute(_ASKED, {"schema": settings.schema, "node": settings.node, **times}).fetchone()
        assert row is not None
        if problem := _problem(_Server(*row[:5]), settings.survives):
            raise UnsafeServer(problem)
        connection.watch(settings.silent_seconds, partial(_is_at_work, settings, row[-2:]))
    except BaseException:
        connection.close()
        raise
    return connection


def _connected(settings: Settings) -> Watched:
    defaults = {
        "connect_timeout": str(max(2, round(settings.connect_seconds))),
        "target_session_attrs": "read-write",
        "application_name": "agentmem",
        "keepalives_idle": "5",  # noticed after 5 + 3 * 5 seconds
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": "20000",  # milliseconds without an acknowledgement
        "client_encoding": "utf8",
    }
    given = psycopg.conninfo.conninfo_to_dict(settings.conninfo)
    connection = Watched.connect(**{**defaults, **given}, autocommit=True)  # type: ignore[arg-type]
    connection.watch(settings.silent_seconds, lambda: False)
    return connection


def _is_at_work(settings: Settings, session: tuple[int, str]) -> bool:
    """Return whether the server works on a statement of this session."""
    try:
        with _connected(settings) as other:
            return other.execute(_AT_WORK, session).fetchone() is not None
    except psycopg.Error as error:  # with a state, or FATAL, it has answered
        return error.sqlstate is not None or "FATAL:" in str(error)


def _problem(server: _Server, survives: Survives) -> str:
    if server.version < OLDEST:
        return f"PostgreSQL {server.version // 10_000} is too old; version {OLDEST // 10_000} or newer is needed"
    if server.encoding != "UTF8":
        return f"the database has the encoding {server.encoding}; create one with ENCODING 'UTF8', TEMPLATE template0"
    if survives == "nothing":
        return ""
    if server.fsync != "on":
        return "the server has fsync = off, so a crash loses or damages what it has acknowledged; set it on"
    if server.synchronous_commit not in _WAITS:
        return (
            f"synchronous_commit is {server.synchronous_commit}, so what was acknowledged can be lost; set it to on"
            " (ALTER DATABASE or ALTER ROLE … SET synchronous_commit = on), or take the loss of turns on"
            " (--cluster-survives nothing)"
        )
    if survives == "server" and not server.standbys.strip():
        return (
            "no synchronous standby is named (synchronous_standby_names is empty), so losing the server loses turns"
            " that were acknowledged; name one (with Patroni: synchronous_mode and synchronous_mode_strict), or say"
            " that a commit need only survive a crash (--cluster-survives crash), as with a service that replicates the"
            " server's disk"
        )
    return ""
