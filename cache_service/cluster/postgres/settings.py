"""What is asked of a PostgreSQL server, and the refusal of one whose acknowledged commits could be lost."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

import psycopg

from cache_service.cluster.postgres.silence import Watched

OLDEST: Final = 140_000
"""PostgreSQL 14, as `server_version_num` counts."""
_WAITS: Final = ("on", "remote_apply", "remote_write")
"""Values of synchronous_commit with which a commit waits for the disk, and for the standbys that are named."""


class Survives(StrEnum):
    """What an acknowledged commit must survive; what the operator takes on is the rest."""

    SERVER = "server"
    """The loss of the server that made it: a synchronous standby has it, too."""
    CRASH = "crash"
    """A crash of the server: its disk has it. For one server, and for a service that replicates its disk."""
    NOTHING = "nothing"
    """Whatever the server is set to, commits that were acknowledged may be lost."""


class UnsafeServer(Exception):
    """The server could lose what it has acknowledged, or cannot hold a ledger; the message says what to do."""


@dataclass(frozen=True)
class Settings:
    """Where the ledger is, and how long things may take, in seconds. `schema` is PostgreSQL's: its tables' place."""

    conninfo: str = field(repr=False)
    """As libpq has it: a URI or key=value, maybe with a password. Of several hosts one that can be written is taken."""
    schema: str = "agentmem"
    node: str = ""
    """Who makes what these connections write: the name of the node."""
    survives: Survives = Survives.SERVER
    writers: int = 8
    readers: int = 4
    statement_seconds: float = 30.0
    """How long one statement may take, locks that it waits for included. PostgreSQL sets COMMIT no limit."""
    idle_seconds: float = 10.0
    """How long a transaction may be idle before the server ends it: a node that hangs holds no agent for longer."""
    connect_seconds: float = 5.0
    silent_seconds: float = 5.0
    """After how long without a word another connection asks whether the server works on a statement."""
    known_seconds: float = 20.0
    """How long a commit of unknown outcome is repeated, before its caller, which waits for longer, learns of that."""


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
    " set_config('client_min_messages', 'warning', false),"  # how a wait that was cancelled is known
    " set_config('statement_timeout', %(statement)s, false),"
    " set_config('idle_in_transaction_session_timeout', %(idle)s, false),"
    " pg_backend_pid(), (SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid())"
)
_AT_WORK: Final = (
    "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND backend_start::text = %s AND state NOT LIKE 'idle%%'"
)


def connect(
    settings: Settings, prepare: Callable[["psycopg.Connection[tuple[Any, ...]]"], None]
) -> "psycopg.Connection[tuple[Any, ...]]":
    """A connection to the server that can be written, whose settings were looked at: they change with a failover.

    Raises psycopg.OperationalError and UnsafeServer.
    """
    connection = _connected(settings)
    try:
        prepare(connection)
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
    """A connection on which any silence is an end. Raises psycopg.OperationalError."""
    defaults = {
        "connect_timeout": str(max(2, round(settings.connect_seconds))),
        "target_session_attrs": "read-write",
        "application_name": "agentmem",
        "keepalives_idle": "5",  # a server that is gone without a word is noticed after 5 + 3 * 5 seconds
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": "20000",  # milliseconds: the same where something was sent, and nothing acknowledges it
        "client_encoding": "utf8",
    }
    given = psycopg.conninfo.conninfo_to_dict(settings.conninfo)
    connection = Watched.connect(**{**defaults, **given}, autocommit=True)  # type: ignore[arg-type]
    connection.watch(settings.silent_seconds, lambda: False)
    return connection


def _is_at_work(settings: Settings, session: tuple[int, str]) -> bool:
    """Whether the server answers, and works on a statement of this session (its process, and when that began)."""
    try:
        with _connected(settings) as other:
            return other.execute(_AT_WORK, session).fetchone() is not None
    except psycopg.Error as error:  # with a state, or FATAL, it has answered, if only that it has no room
        return error.sqlstate is not None or "FATAL:" in str(error)


def _problem(server: _Server, survives: Survives) -> str:
    """Why a server is refused; empty if it isn't."""
    if server.version < OLDEST:
        return f"PostgreSQL {server.version // 10_000} is too old; version {OLDEST // 10_000} or newer is needed"
    if server.encoding != "UTF8":
        return f"the database has the encoding {server.encoding}; create one with ENCODING 'UTF8', TEMPLATE template0"
    if survives is Survives.NOTHING:
        return ""
    if server.fsync != "on":
        return "the server has fsync = off, so a crash loses or damages what it has acknowledged; set it on"
    if server.synchronous_commit not in _WAITS:
        return (
            f"synchronous_commit is {server.synchronous_commit}, so what was acknowledged can be lost; set it to on"
            " (ALTER DATABASE or ALTER ROLE … SET synchronous_commit = on), or take the loss of turns on"
            " (--cluster-survives nothing)"
        )
    if survives is Survives.SERVER and not server.standbys.strip():
        return (
            "no synchronous standby is named (synchronous_standby_names is empty), so losing the server loses turns"
            " that were acknowledged; name one (with Patroni: synchronous_mode and synchronous_mode_strict), or say"
            " that a commit need only survive a crash (--cluster-survives crash), as with a service that replicates the"
            " server's disk"
        )
    return ""
