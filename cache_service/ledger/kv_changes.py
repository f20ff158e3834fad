"""A log of changes for KV files to follow, in the ledger's database. Functions of a connection.

A transaction that makes or deletes a state adds a row. `files.holding` then changes warm.db and files, and asks for the
`standing` of a version before publishing. In a cluster a row stays until all nodes have followed it.
"""

from collections.abc import Sequence

from agentmem.kv.ledger import Version
from agentmem.validation import AgentKey
from cache_service.connection import Connection, among, differences, pieces
from cache_service.files.holding import OWN, KVChange, Standing, States

_COLUMNS = "uid, snapshot, source_uid, source_snapshot, tokens, version, namespace, agent_id, model_id"


def give(
    connection: Connection,
    namespace: str,
    version: Version,
    source: tuple[str, int],
    tokens: int,
    snapshot: int = OWN,
) -> None:
    """Log that an agent's own state, now at `version`, or a snapshot, has the first tokens of `source` (uid,
    snapshot)."""
    row = version.uid, snapshot, *source, tokens, version.number, namespace, None, None
    connection.execute(f"INSERT INTO kv_changes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def end(connection: Connection, key: AgentKey, uid: str, snapshot: int) -> None:
    """Log that a snapshot was deleted."""
    row = uid, snapshot, None, OWN, 0, 0, key.namespace, None, None
    connection.execute(f"INSERT INTO kv_changes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def erase(connection: Connection, key: AgentKey, uid: str) -> None:
    """Log that an agent was erased, with snapshots and files; `uid` is "" without a ledger."""
    row = uid, None, None, OWN, 0, 0, *key
    connection.execute(f"INSERT INTO kv_changes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def after(connection: Connection, change: int) -> list[KVChange]:
    """Return changes after `change` that can be followed, in order."""
    followed = differences(connection).change
    rows = connection.execute(
        f"SELECT {followed}, {_COLUMNS} FROM kv_changes WHERE {followed} > ? AND {followed} <= ? ORDER BY id",
        (change, last(connection)),
    )
    return [KVChange(*row) for row in rows]


def forget(connection: Connection, change: int) -> int:
    """Delete changes up to `change`, which were followed durably; return how many named an erased agent."""
    followed = differences(connection).change
    rows = connection.execute(f"DELETE FROM kv_changes WHERE {followed} <= ? RETURNING agent_id", (change,))
    return sum(agent_id is not None for (agent_id,) in rows)


def any_up_to(connection: Connection, change: int) -> bool:
    followed = differences(connection).change
    found = connection.execute(f"SELECT 1 FROM kv_changes WHERE {followed} <= ? LIMIT 1", (change,))
    return found.fetchone() is not None


def newest(connection: Connection) -> int:
    """Return the last change that `forget` has not deleted, or 0."""
    followed = differences(connection).change
    return int(connection.execute(f"SELECT coalesce(max({followed}), 0) FROM kv_changes").fetchone()[0])


def last(connection: Connection) -> int:
    """Return the last change that can be followed, deleted or not; no earlier one will be added."""
    return int(connection.execute(differences(connection).last_change).fetchone()[0])


def states(connection: Connection, uids: Sequence[str]) -> States:
    """Return the existing states of these agents and of those in changes, and all changes."""
    found, snapshots, changes = dict[str, int](), set[int](), after(connection, 0)
    uids = [*{*uids, *(change.uid for change in changes)}]
    for some in pieces(uids):
        these = among("uid", some)
        found.update(connection.execute(f"SELECT uid, version FROM agents WHERE {these}", some).fetchall())
        rows = connection.execute(f"SELECT id FROM snapshots WHERE {these}", some)
        snapshots.update(number for (number,) in rows)
    return States(found, snapshots, last(connection), changes)


def standing(connection: Connection, key: AgentKey, version: Version) -> Standing:
    """Return the standing of a version whose files are published."""
    if not version.uid:
        return Standing(exists=True, is_known=False)
    row = connection.execute(
        "SELECT namespace = :namespace AND agent_id = :agent_id AND model_id = :model_id AND (revision = :revision"
        " OR EXISTS (SELECT 1 FROM turns AS t WHERE t.uid = :uid AND t.version = :number AND t.revision = :revision))"
        " FROM agents WHERE uid = :uid",
        {**version._asdict(), **key._asdict()},
    ).fetchone()
    if row is None:
        return Standing(exists=False, is_known=False)
    found = connection.execute(
        "SELECT id FROM snapshots WHERE uid = ? AND version = ? AND revision = ?", version
    ).fetchall()
    return Standing(exists=True, is_known=bool(row[0]), snapshots=tuple(number for (number,) in found))
