"""What becomes of states' KV, said by the ledger to whoever has files of it. Functions of a connection to store.db.

A transaction that makes a state of another one, or ends one, adds rows here; the files are another database's, which
follows: see `files.holding`. Publishing asks back in what standing a version is. Where several follow one ledger, a row
stays until all of them have.
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
    """An agent's own state, now at `version`, or a snapshot of it, has the first tokens of the state `source` (uid,
    snapshot).
    """
    row = version.uid, snapshot, *source, tokens, version.number, namespace, None, None
    connection.execute(f"INSERT INTO kv_changes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def end(connection: Connection, key: AgentKey, uid: str, snapshot: int) -> None:
    """A snapshot is gone."""
    row = uid, snapshot, None, OWN, 0, 0, key.namespace, None, None
    connection.execute(f"INSERT INTO kv_changes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def erase(connection: Connection, key: AgentKey, uid: str) -> None:
    """An agent is erased, with its snapshots and what its own turns computed; "" where it never came to be."""
    row = uid, None, None, OWN, 0, 0, *key
    connection.execute(f"INSERT INTO kv_changes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def after(connection: Connection, change: int) -> list[KVChange]:
    """The changes behind `change` that can be followed, in their order."""
    followed = differences(connection).change
    rows = connection.execute(
        f"SELECT {followed}, {_COLUMNS} FROM kv_changes WHERE {followed} > ? AND {followed} <= ? ORDER BY id",
        (change, last(connection)),
    )
    return [KVChange(*row) for row in rows]


def forget(connection: Connection, change: int) -> int:
    """Those up to `change` were followed, durably; how many of them named an agent that was erased."""
    followed = differences(connection).change
    rows = connection.execute(f"DELETE FROM kv_changes WHERE {followed} <= ? RETURNING agent_id", (change,))
    return sum(agent_id is not None for (agent_id,) in rows)


def any_up_to(connection: Connection, change: int) -> bool:
    """Whether there is something to forget."""
    followed = differences(connection).change
    found = connection.execute(f"SELECT 1 FROM kv_changes WHERE {followed} <= ? LIMIT 1", (change,))
    return found.fetchone() is not None


def newest(connection: Connection) -> int:
    """The last change that is not forgotten; 0 if there is none."""
    followed = differences(connection).change
    return int(connection.execute(f"SELECT coalesce(max({followed}), 0) FROM kv_changes").fetchone()[0])


def last(connection: Connection) -> int:
    """The last change that can be followed, whether it is forgotten or not: no earlier one will come."""
    return int(connection.execute(differences(connection).last_change).fetchone()[0])


def states(connection: Connection, uids: Sequence[str]) -> States:
    """How those of these agents are that there are, and of those that changes are of; and all changes."""
    found, snapshots, changes = dict[str, int](), set[int](), after(connection, 0)
    uids = [*{*uids, *(change.uid for change in changes)}]
    for some in pieces(uids):
        these = among("uid", some)
        found.update(connection.execute(f"SELECT uid, version FROM agents WHERE {these}", some).fetchall())
        rows = connection.execute(f"SELECT id FROM snapshots WHERE {these}", some)
        snapshots.update(number for (number,) in rows)
    return States(found, snapshots, last(connection), changes)


def standing(connection: Connection, key: AgentKey, version: Version) -> Standing:
    """In what standing a version is for which files are published."""
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
