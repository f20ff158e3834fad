"""A log of agents whose files have to follow. In a cluster a row stays until all nodes have."""

from collections.abc import Iterable, Sequence

from agentmem.kv.ledger import Version
from agentmem.validation import AgentKey
from cache_service.connection import Connection, among, differences, pieces
from cache_service.files.holding import KVChange, Standing, States

_COLUMNS = "uid, version, source_uid, source_version, tokens, namespace, agent_id, model_id"


def move(connection: Connection, namespace: str, version: Version, source: tuple[str, int], tokens: int) -> None:
    """Log that an agent, now at `version`, has the first tokens of `source`, a version's uid and number."""
    _add(connection, (version.uid, version.number, *source, tokens, namespace, None, None))


def end(connection: Connection, namespace: str, uid: str) -> None:
    """Log that a snapshot was deleted."""
    _add(connection, (uid, 0, None, 0, 0, namespace, None, None))


def erase(connection: Connection, key: AgentKey, uid: str) -> None:
    """Log that an agent was erased, with snapshots and files; `uid` is "" without a ledger."""
    _add(connection, (uid, 0, None, 0, 0, *key))


def _add(connection: Connection, row: Sequence[str | int | None]) -> None:
    connection.execute(f"INSERT INTO kv_changes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


def after(connection: Connection, change: int) -> States:
    """Return changes after `change`, in order, and the present states of their agents."""
    return states(connection, (), change)


def states(connection: Connection, uids: Iterable[str], change: int = 0) -> States:
    followed, to = differences(connection).change, last(connection)
    rows = connection.execute(
        f"SELECT {followed}, {_COLUMNS} FROM kv_changes WHERE {followed} > ? AND {followed} <= ? ORDER BY id",
        (change, to),
    )
    changes = [KVChange(*row) for row in rows]
    versions, kept = dict[str, int](), dict[str, list[int]]()
    sources = (change.source_uid for change in changes if change.source_uid is not None)
    for some in pieces([*{*uids, *sources, *(change.uid for change in changes)}]):
        these = among("uid", some)
        versions.update(connection.execute(f"SELECT uid, version FROM agents WHERE {these}", some).fetchall())
        for uid, version in _kept(connection, some, to):
            kept.setdefault(uid, []).append(version)
    return States(versions, kept, to, changes)


def _kept(connection: Connection, uids: Sequence[str], followed: int) -> list[tuple[str, int]]:
    """Return snapshots, and versions that moves after `followed` start from: their snapshot or agent may be gone."""
    return connection.execute(
        f"SELECT uid, version FROM snapshots WHERE {among('uid', uids)} UNION ALL SELECT source_uid, source_version"
        f" FROM kv_changes WHERE {differences(connection).change} > ? AND {among('source_uid', uids)}",
        (*uids, followed, *uids),
    ).fetchall()


def forget(connection: Connection, change: int) -> int:
    """Delete changes, which were followed durably; return how many named an erased agent."""
    followed = differences(connection).change
    rows = connection.execute(f"DELETE FROM kv_changes WHERE {followed} <= ? RETURNING agent_id", (change,))
    return sum(agent_id is not None for (agent_id,) in rows)


def any_up_to(connection: Connection, change: int) -> bool:
    followed = differences(connection).change
    found = connection.execute(f"SELECT 1 FROM kv_changes WHERE {followed} <= ? LIMIT 1", (change,))
    return found.fetchone() is not None


def newest(connection: Connection) -> int:
    """Return the last change that is not deleted, or 0."""
    followed = differences(connection).change
    return int(connection.execute(f"SELECT coalesce(max({followed}), 0) FROM kv_changes").fetchone()[0])


def last(connection: Connection) -> int:
    """Return the last change that can be followed, deleted or not."""
    return int(connection.execute(differences(connection).last_change).fetchone()[0])


def standing(connection: Connection, key: AgentKey, version: Version, followed: int) -> Standing:
    """Return the ledger's word for files that have followed its changes up to `followed`."""
    if not version.uid:
        return Standing(exists=True, is_known=False)
    row = connection.execute(
        "SELECT namespace = :namespace AND agent_id = :agent_id AND model_id = :model_id AND (revision = :revision"
        " OR EXISTS (SELECT 1 FROM turns AS t WHERE t.uid = :uid AND t.version = :number AND t.revision = :revision)"
        " OR EXISTS (SELECT 1 FROM snapshots AS s WHERE s.uid = :uid AND s.revision = :revision))"
        " FROM agents WHERE uid = :uid",
        {**version._asdict(), **key._asdict()},
    ).fetchone()
    kept = tuple(number for _, number in _kept(connection, [version.uid], followed))
    return Standing(exists=row is not None, is_known=row is not None and bool(row[0]), kept=kept)
