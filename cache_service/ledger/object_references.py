"""The objects of the object store that states of agents and snapshots consist of. Functions of a connection.

Rows exist only with an object store; triggers delete an object with its last row.
"""

from collections.abc import Iterable, Sequence, Set
from itertools import starmap

from agentmem.kv.blockfile import FileKind, FileName
from agentmem.kv.ledger import Version
from cache_service.connection import Connection, among, pieces
from cache_service.files.holding import OWN
from cache_service.files.references import named


def of(connection: Connection, uid: str, snapshot: int = OWN) -> set[FileName]:
    """Return the files that an agent's own state, or a snapshot, refers to."""
    rows = connection.execute(
        "SELECT kind, chain_hash FROM object_refs WHERE uid = ? AND snapshot = ?", (uid, snapshot)
    )
    return set(starmap(named, rows))


def within(connection: Connection, names: Iterable[FileName], tokens: int) -> set[FileName]:
    """Return those of `names` wholly within the first `tokens` tokens."""
    statement = "SELECT 1 FROM objects WHERE kind = ? AND chain_hash = ? AND first_token + token_count <= ?"
    return {name for name in names if connection.execute(statement, (*name, tokens)).fetchone()}


def give(connection: Connection, uid: str, names: Set[FileName]) -> None:
    """Let an agent's own state refer to the objects in `names`, and to no others."""
    before = of(connection, uid)
    connection.executemany(
        "INSERT INTO object_refs (uid, snapshot, kind, chain_hash) SELECT ?, 0, kind, chain_hash FROM objects"
        " WHERE kind = ? AND chain_hash = ?",
        [(uid, *name) for name in names - before],
    )
    connection.executemany(
        "DELETE FROM object_refs WHERE uid = ? AND snapshot = 0 AND kind = ? AND chain_hash = ?",
        [(uid, *name) for name in before - names],
    )


def publish(connection: Connection, version: Version, names: Set[FileName]) -> None:
    """Let an agent's own state refer to the objects in `names`, if it is still at this version."""
    found = connection.execute(
        "SELECT 1 FROM agents WHERE uid = ? AND version = ? AND revision = ?", version
    ).fetchone()
    if found is not None:
        give(connection, version.uid, names)


def differs(connection: Connection, uid: str, names: Set[FileName]) -> bool:
    """Return whether an agent's own state refers to other objects than those in `names`."""
    present = of(connection, uid)
    if not present <= names:
        return True
    statement = "SELECT 1 FROM objects WHERE kind = ? AND chain_hash = ?"
    return any(connection.execute(statement, name).fetchone() for name in names - present)


def keep(connection: Connection, uid: str, snapshot: int) -> None:
    """Let a new snapshot refer to what the agent's own state does."""
    connection.execute(
        "INSERT INTO object_refs (uid, snapshot, kind, chain_hash)"
        " SELECT uid, ?, kind, chain_hash FROM object_refs WHERE uid = ? AND snapshot = 0",
        (snapshot, uid),
    )


def add(connection: Connection, holders: Iterable[tuple[str, int]], name: FileName) -> bool:
    """Let existing states (uid, snapshot) refer to an object; return whether any does."""
    for uid, snapshot in holders:
        connection.execute(
            "INSERT INTO object_refs (uid, snapshot, kind, chain_hash) SELECT uid, ?, ?, ? FROM agents WHERE uid = ?"
            " AND (? = 0 OR EXISTS (SELECT 1 FROM snapshots AS s WHERE s.id = ? AND s.uid = agents.uid))"
            " ON CONFLICT DO NOTHING",
            (snapshot, *name, uid, snapshot, snapshot),
        )
    return bool(holders_of(connection, name))


def referred(connection: Connection, uids: Sequence[str]) -> set[tuple[str, int, FileName]]:
    """Return the objects that are there and that states of these agents refer to, with their uids and snapshots."""
    found = set[tuple[str, int, FileName]]()
    for some in pieces(uids):
        rows = connection.execute(
            "SELECT uid, snapshot, kind, chain_hash FROM object_refs JOIN objects USING (kind, chain_hash)"
            f" WHERE present = 1 AND {among('uid', some)}",
            some,
        )
        found.update((uid, snapshot, named(*name)) for uid, snapshot, *name in rows)
    return found


def holders_of(connection: Connection, name: FileName) -> list[tuple[str, int]]:
    """Return the states (uid, snapshot) that refer to an object."""
    rows = connection.execute("SELECT uid, snapshot FROM object_refs WHERE kind = ? AND chain_hash = ?", name)
    return [(str(uid), int(snapshot)) for uid, snapshot in rows]


def forget(connection: Connection, uid: str, snapshot: int) -> None:
    connection.execute("DELETE FROM object_refs WHERE uid = ? AND snapshot = ?", (uid, snapshot))


def drop(connection: Connection, uid: str) -> bool:
    """Delete all references of an agent and its snapshots; return whether there were any."""
    return connection.execute("DELETE FROM object_refs WHERE uid = ?", (uid,)).rowcount > 0


def fingerprint(connection: Connection, uid: str) -> str:
    """Return the fingerprint of an agent's own KV in the object store, or ""."""
    row = connection.execute(
        "SELECT o.fingerprint FROM object_refs AS r CROSS JOIN objects AS o"
        " WHERE o.kind = r.kind AND o.chain_hash = r.chain_hash AND r.uid = ? AND r.snapshot = 0 AND o.present = 1"
        " LIMIT 1",
        (uid,),
    ).fetchone()
    return "" if row is None else str(row[0])


def blocks(connection: Connection, uid: str, fingerprint: str = "") -> dict[int, int]:
    """Return the ends of an agent's blocks in the object store by their first tokens; fingerprint "": any."""
    rows = connection.execute(
        "SELECT o.first_token, max(o.first_token + o.token_count) FROM object_refs AS r CROSS JOIN objects AS o"
        " WHERE o.kind = r.kind AND o.chain_hash = r.chain_hash AND r.uid = ? AND r.snapshot = 0 AND o.present = 1"
        f" AND o.kind = {FileKind.BLOCK:d} AND ? IN ('', o.fingerprint) GROUP BY o.first_token",
        (uid, fingerprint),
    )
    return {int(first): int(end) for first, end in rows}


def remote_uids(connection: Connection) -> set[str]:
    """Return the agents whose own states have KV in the object store."""
    statement = (
        "SELECT DISTINCT uid FROM object_refs JOIN objects USING (kind, chain_hash) WHERE snapshot = 0 AND present = 1"
    )
    return {str(uid) for (uid,) in connection.execute(statement)}
