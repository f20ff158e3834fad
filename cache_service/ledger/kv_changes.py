"""What becomes of states' KV, said by the ledger to whoever has files of it. Functions of a connection to store.db.

A transaction that makes a state of another one, or ends one, adds rows here; the files are another database's, which
follows: see `files.holding`. Publishing asks back in what standing a version is.
"""

from agentmem.identity import Version
from agentmem.validation import AgentKey
from cache_service.connection import Connection
from cache_service.files.holding import OWN, KVChange, Standing

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
    """The changes since `change`, in their order."""
    rows = connection.execute(f"SELECT id, {_COLUMNS} FROM kv_changes WHERE id > ? ORDER BY id", (change,))
    return [KVChange(*row) for row in rows]


def forget(connection: Connection, change: int) -> int:
    """Those up to `change` were followed, durably; how many of them named an agent that was erased."""
    rows = connection.execute("DELETE FROM kv_changes WHERE id <= ? RETURNING agent_id", (change,))
    return sum(agent_id is not None for (agent_id,) in rows)


def any_up_to(connection: Connection, change: int) -> bool:
    """Whether there is something to forget."""
    return connection.execute("SELECT 1 FROM kv_changes WHERE id <= ? LIMIT 1", (change,)).fetchone() is not None


def newest(connection: Connection) -> int:
    """The last change that is not forgotten; 0 if there is none."""
    return int(connection.execute("SELECT coalesce(max(id), 0) FROM kv_changes").fetchone()[0])


def last(connection: Connection) -> int:
    """The last change that there ever was."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'kv_changes'").fetchone()
    return 0 if row is None else int(row[0])


def states(connection: Connection) -> tuple[dict[str, int], set[int], int, list[KVChange]]:
    """All agents' versions by uid, all snapshots, `last`, and all changes: what `holding.reconcile` takes."""
    versions = {uid: version for uid, version in connection.execute("SELECT uid, version FROM agents")}
    found = {row[0] for row in connection.execute("SELECT id FROM snapshots")}
    return versions, found, last(connection), after(connection, 0)


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
