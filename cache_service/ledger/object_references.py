"""Objects that agents consist of, by ranges of versions. Triggers delete an object with its last row."""

from collections.abc import Iterable, Sequence, Set
from itertools import starmap

from agentmem.kv.blockfile import FileKind, FileName
from agentmem.kv.ledger import Version
from cache_service.connection import Connection, among, pieces
from cache_service.files.holding import Range
from cache_service.files.references import named


def of(connection: Connection, uid: str) -> set[FileName]:
    rows = connection.execute("SELECT kind, chain_hash FROM object_refs WHERE uid = ? AND last_version IS NULL", (uid,))
    return set(starmap(named, rows))


def move(connection: Connection, version: Version, source: tuple[str, int], tokens: int) -> None:
    """Let an agent, now at `version`, refer to what ends within the first tokens of `source`, a version's uid and
    number.
    """
    uid, number = source
    rows = connection.execute(
        "SELECT DISTINCT kind, chain_hash FROM object_refs JOIN objects USING (kind, chain_hash) WHERE uid = ?"
        " AND first_version <= ? AND (last_version IS NULL OR last_version >= ?) AND first_token + token_count <= ?",
        (uid, number, number, tokens),
    )
    _change(connection, version, set(starmap(named, rows.fetchall())))


def publish(connection: Connection, version: Version, names: Set[FileName]) -> None:
    """Let the state refer to `names` only, if it is still at this version."""
    found = connection.execute(
        "SELECT 1 FROM agents WHERE uid = ? AND version = ? AND revision = ?", version
    ).fetchone()
    if found is not None:
        _change(connection, version, names)


def _change(connection: Connection, version: Version, names: Set[FileName]) -> None:
    before = of(connection, version.uid)
    connection.executemany(
        "UPDATE object_refs SET last_version = ?"
        " WHERE uid = ? AND kind = ? AND chain_hash = ? AND last_version IS NULL",
        [(version.number - 1, version.uid, *name) for name in before - names],
    )
    connection.executemany(
        "INSERT INTO object_refs (uid, kind, chain_hash, first_version) SELECT ?, kind, chain_hash, ? FROM objects"
        " WHERE kind = ? AND chain_hash = ?"
        " ON CONFLICT (uid, kind, chain_hash, first_version) DO UPDATE SET last_version = NULL",
        [(version.uid, version.number, *name) for name in names - before],
    )
    settle(connection, version.uid)


def settle(connection: Connection, uid: str) -> None:
    """Forget what neither the present state nor a snapshot has."""
    connection.execute(
        "DELETE FROM object_refs WHERE uid = ? AND last_version IS NOT NULL AND NOT EXISTS (SELECT 1 FROM snapshots"
        " AS s WHERE s.uid = object_refs.uid AND s.version BETWEEN first_version AND last_version)",
        (uid,),
    )


def differs(connection: Connection, uid: str, names: Set[FileName]) -> bool:
    present = of(connection, uid)
    if not present <= names:
        return True
    statement = "SELECT 1 FROM objects WHERE kind = ? AND chain_hash = ?"
    return any(connection.execute(statement, name).fetchone() for name in names - present)


def add(connection: Connection, ranges: Iterable[Range], name: FileName) -> bool:
    """Let existing states refer to an object; return whether any does."""
    for uid, first, last in ranges:
        exists, versions = "", tuple[int, ...]()
        if last is not None:
            exists = " AND EXISTS (SELECT 1 FROM snapshots AS s WHERE s.uid = a.uid AND s.version BETWEEN ? AND ?)"
            versions = first, last
        connection.execute(
            "INSERT INTO object_refs (uid, kind, chain_hash, first_version, last_version)"
            f" SELECT uid, ?, ?, ?, ? FROM agents AS a WHERE uid = ?{exists} ON CONFLICT DO NOTHING",
            (*name, first, last, uid, *versions),
        )
    return bool(ranges_of(connection, name))


def referred(connection: Connection, uids: Sequence[str]) -> set[tuple[Range, FileName]]:
    found = set[tuple[Range, FileName]]()
    for some in pieces(uids):
        rows = connection.execute(
            "SELECT uid, first_version, last_version, kind, chain_hash FROM object_refs"
            f" JOIN objects USING (kind, chain_hash) WHERE present = 1 AND {among('uid', some)}",
            some,
        )
        found.update((Range(*row[:3]), named(*row[3:])) for row in rows)
    return found


def ranges_of(connection: Connection, name: FileName) -> list[Range]:
    rows = connection.execute(
        "SELECT uid, first_version, last_version FROM object_refs WHERE kind = ? AND chain_hash = ?", name
    )
    return [*starmap(Range, rows)]


def drop(connection: Connection, uid: str) -> bool:
    """Return whether there were any."""
    return connection.execute("DELETE FROM object_refs WHERE uid = ?", (uid,)).rowcount > 0


def fingerprint(connection: Connection, uid: str) -> str:
    row = connection.execute(f"SELECT o.fingerprint {_PRESENT} LIMIT 1", (uid,)).fetchone()
    return "" if row is None else str(row[0])


def blocks(connection: Connection, uid: str, fingerprint: str = "") -> dict[int, int]:
    """Return ends of blocks in the object store by their first tokens; fingerprint "": any."""
    rows = connection.execute(
        f"SELECT o.first_token, max(o.first_token + o.token_count) {_PRESENT}"
        f" AND o.kind = {FileKind.BLOCK:d} AND ? IN ('', o.fingerprint) GROUP BY o.first_token",
        (uid, fingerprint),
    )
    return {int(first): int(end) for first, end in rows}


def remote_uids(connection: Connection) -> set[str]:
    statement = (
        "SELECT DISTINCT uid FROM object_refs JOIN objects USING (kind, chain_hash)"
        " WHERE last_version IS NULL AND present = 1"
    )
    return {str(uid) for (uid,) in connection.execute(statement)}


_PRESENT = (
    "FROM object_refs AS r CROSS JOIN objects AS o WHERE o.kind = r.kind AND o.chain_hash = r.chain_hash"
    " AND r.uid = ? AND r.last_version IS NULL AND o.present = 1"
)
