"""Rows of nodes and claims. Functions of a connection, in one transaction.

Times are nanoseconds of the server's clock. No commit depends on these rows.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from agentmem.kv.ledger import NO_VERSION, Version
from agentmem.validation import AgentKey
from cache_service.cluster import keys
from cache_service.connection import Connection
from cache_service.ledger import kv_changes

LEASE: Final = 10 * 10**9
_UNSURE: Final = 60 * 10**9
"""After a lease, until the node's changes of KV may be forgotten."""
_LATE: Final = 2 * 10**9
"""The same for callers that wait."""
_REMEMBERED: Final = 3600 * 10**9
"""After a lease, until the node is no longer listed."""
_COUNTED: Final = 60 * 10**9
"""Most between two readings of the server's clock: more is a step of it."""
_NOW: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"


class Node(NamedTuple):
    """`expires` is the rest of its lease, at most 0 when it is over."""

    name: str
    epoch: int
    address: str
    expires: int
    followed: int
    report: bytes


class Said(NamedTuple):
    """`directory` is the data directory's name; files have followed changes of KV up to `followed`."""

    name: str
    directory: str
    address: str
    followed: int = 0
    report: bytes = b""


class NameTaken(Exception):
    """The message says what to do."""


class Beat(NamedTuple):
    """`rejoined`: others did not wait for the node."""

    epoch: int
    rejoined: bool
    nodes: list[Node]
    time: int
    """The ledger's, by which agents are idle."""
    wall: int
    """The server's clock."""
    newest: int
    keys_version: str
    """Read after the lease began."""


def beat(connection: Connection, said: Said, epoch: int) -> Beat:
    """Begin a lease. `epoch` is that of the last beat, 0 before the first. Raises NameTaken."""
    _hurry(connection)
    (now,) = connection.execute(_NOW).fetchone()
    epoch, rejoined = _joined(connection, said, epoch, now)
    followed = 0 if rejoined else min(said.followed, kv_changes.last(connection))  # that of a lost future is none
    connection.execute(
        "UPDATE nodes SET epoch = ?, directory = ?, address = ?, expires = ?, followed = ?, report = ? WHERE node = ?",
        (epoch, said.directory, said.address, now + LEASE, followed, said.report, said.name),
    )
    connection.execute("DELETE FROM nodes WHERE expires < ?", (now - _REMEMBERED,))
    rows = connection.execute("SELECT node, epoch, address, expires - ?, followed, report FROM nodes", (now,))
    nodes = sorted(Node(*row) for row in rows)
    by_all = min(node.followed for node in nodes if node.expires > -_UNSURE)
    if kv_changes.any_up_to(connection, by_all):
        kv_changes.forget(connection, by_all)
    newest, keys_version = kv_changes.newest(connection), keys.version(connection)
    return Beat(epoch, rejoined, nodes, _time(connection, now), now, newest, keys_version)


def leave(connection: Connection, name: str, epoch: int) -> None:
    _hurry(connection)
    connection.execute("DELETE FROM nodes WHERE node = ? AND epoch = ?", (name, epoch))


class StillThere(Exception):
    """The message says what to do."""


def forget(connection: Connection, name: str) -> bool:
    """Forget a node that is gone; return whether there was one. Raises StillThere."""
    (now,) = connection.execute(_NOW).fetchone()
    row = connection.execute("SELECT expires - ? FROM nodes WHERE node = ? FOR UPDATE", (now - _LATE, name)).fetchone()
    if row is None:
        return False
    if row[0] > 0:
        raise StillThere(
            f"node {name} is there; stop it, which takes it out of the list, or wait {(LEASE + _LATE) // 10**9} s after"
            " its end"
        )
    connection.execute("DELETE FROM nodes WHERE node = ?", (name,))
    return True


def claim(connection: Connection, name: str, begun: Iterable[AgentKey], ended: Iterable[AgentKey] | None) -> None:
    """Note turns that run, and those that have ended (None: all others)."""
    _hurry(connection)
    if ended is None:
        connection.execute("DELETE FROM claims WHERE node = ?", (name,))
    connection.executemany(
        "DELETE FROM claims WHERE namespace = ? AND agent_id = ? AND model_id = ? AND node = ?",
        [(*key, name) for key in ended or ()],
    )
    connection.executemany(
        "INSERT INTO claims (namespace, agent_id, model_id, node) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [(*key, name) for key in begun],
    )


def locate(connection: Connection, key: AgentKey) -> tuple[str, str]:
    """Return the nodes that run a turn of an agent, and made its present state."""
    (now,) = connection.execute(_NOW).fetchone()
    claimed = connection.execute(
        "SELECT node FROM claims JOIN nodes USING (node) WHERE namespace = ? AND agent_id = ? AND model_id = ?"
        " AND expires > ? ORDER BY node LIMIT 1",
        (*key, now),
    ).fetchone()
    made = connection.execute(
        "SELECT node FROM agents WHERE namespace = ? AND agent_id = ? AND model_id = ?", key
    ).fetchone()
    return "" if claimed is None else str(claimed[0]), "" if made is None else str(made[0])


def maker(connection: Connection, key: AgentKey) -> tuple[str, Version]:
    row = connection.execute(
        "SELECT node, uid, version, revision FROM agents WHERE namespace = ? AND agent_id = ? AND model_id = ?", key
    ).fetchone()
    return ("", NO_VERSION) if row is None else (str(row[0]), Version(*row[1:]))


def unfollowed(connection: Connection, key: AgentKey) -> int:
    """Return how many erasures of an agent (model_id may be empty) not all nodes have followed."""
    (now,) = connection.execute(_NOW).fetchone()
    (count,) = connection.execute(
        "SELECT count(*) FROM kv_changes WHERE namespace = ? AND agent_id = ?"
        " AND (model_id = ? OR model_id = '' OR ? = '') AND xid > (SELECT min(followed) FROM nodes WHERE expires > ?)",
        (*key, key.model_id, now - _LATE),
    ).fetchone()
    return int(count)


def share(connection: Connection, name: str, value: bytes) -> bytes:
    """Keep the first value of a name, unless it is empty; return the one that is kept."""
    if value:
        connection.execute("INSERT INTO setups (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING", (name, value))
    row = connection.execute("SELECT value FROM setups WHERE name = ?", (name,)).fetchone()
    return b"" if row is None else bytes(row[0])


def behind(connection: Connection, age: int) -> list[tuple[str, int]]:
    """Return live nodes that have not followed changes of KV older than `age`, with how many."""
    (now,) = connection.execute(_NOW).fetchone()
    rows = connection.execute(
        "SELECT node, count(*) FROM nodes JOIN kv_changes ON followed < xid WHERE expires > ? AND made < ?"
        " GROUP BY node ORDER BY node",
        (now - _UNSURE, now - age),
    )
    return [(str(node), int(count)) for node, count in rows]


def time(connection: Connection) -> int:
    (now,) = connection.execute(_NOW).fetchone()
    row = connection.execute("SELECT time, read FROM clock WHERE id = 1").fetchone()
    return int(now if row is None else row[0] + min(max(now - row[1], 0), _COUNTED))


def cluster_id(connection: Connection) -> str:
    return str(connection.execute("SELECT ledger_id FROM ledger WHERE id = 1").fetchone()[0])


def _hurry(connection: Connection) -> None:
    """Wait for no standby, and not long for locks."""
    connection.execute("SET LOCAL synchronous_commit = off")
    connection.execute("SET LOCAL lock_timeout = '1s'")
    connection.execute("SET LOCAL idle_in_transaction_session_timeout = '2s'")


def _joined(connection: Connection, said: Said, epoch: int, now: int) -> tuple[int, bool]:
    """Return the epoch to go on in, and whether the node was away."""
    row = connection.execute(
        "SELECT epoch, directory, expires > ? FROM nodes WHERE node = ? FOR UPDATE", (now, said.name)
    ).fetchone()
    if row is None:
        new = max(epoch + 1, now // 10**6)
        connection.execute(
            "INSERT INTO nodes (node, epoch, directory, address, expires, followed, report)"
            " VALUES (?, ?, '', '', 0, 0, '')",
            (said.name, new),
        )
        return new, True
    before, directory, is_there = row
    if before == epoch and directory == said.directory:
        return epoch, not is_there
    if is_there and (directory != said.directory or before > epoch > 0):
        raise NameTaken(
            f"another node is there as {said.name!r}; give each node a --node and a --data of its own, or wait"
            f" {LEASE // 10**9} s if that one has ended"
        )
    return max(before + 1, now // 10**6), True


def _time(connection: Connection, now: int) -> int:
    """Return the ledger's time, moved on."""
    row = connection.execute("SELECT time, read FROM clock WHERE id = 1").fetchone()
    if row is None:
        (used,) = connection.execute("SELECT coalesce(max(used), 0) FROM agents").fetchone()
        connection.execute("INSERT INTO clock VALUES (1, ?, ?) ON CONFLICT DO NOTHING", (max(now, used), now))
        return max(now, int(used))
    time, read = row
    passed = min(max(now - read, 0), _COUNTED)
    if passed >= 10**9 or now < read:  # another node has moved it
        connection.execute("UPDATE clock SET time = ?, read = ? WHERE id = 1 AND read = ?", (time + passed, now, read))
    return int(time + passed)
