"""Records of workflow runs, opaque to the store: a head, a payload and events, so a put costs what it adds."""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from agentmem.errors import Aborted, InvalidArgument, NotFound
from agentmem.validation import MAX_RECORD_BYTES
from cache_service.connection import Connection, differences, insert
from cache_service.damage import LedgerDamaged

NEWEST: Final = 2**63 - 1
"""As `before` for the first page."""

TORN: Final = (
    "(events + 1, bytes) != (SELECT count(*), coalesce(sum(length(content)), 0) FROM workflow_parts"
    " WHERE record = workflow_records.id)"
)
"""SQL: a record lacks what it counts."""


class Record(NamedTuple):
    """`id` is its place in the order of creation; `size_bytes` counts payload and events; `holder` is the gateway that
    continues the run, "" for nobody.
    """

    id: int
    workflow_id: str
    version: int
    events: int
    size_bytes: int
    summary: bytes
    holder: str = ""


class Content(NamedTuple):
    record: Record
    payload: bytes | None
    events: list[bytes]


class Put(NamedTuple):
    """Additions to a record in `version`, 0 for a new one. `payload` None leaves it. `holder` is as in Record."""

    namespace: str
    workflow_id: str
    version: int
    summary: bytes
    payload: bytes | None
    events: Sequence[bytes]
    holder: str = ""


def put(connection: Connection, new: Put) -> int:
    """Return the new version. Raises Aborted for another one, InvalidArgument."""
    namespace, workflow_id, version, summary, payload, events, holder = new
    record = find(connection, namespace, workflow_id)
    present = 0 if record is None else record.version
    if present != version:
        raise _moved(present, version)
    if record is None and payload is None:
        raise InvalidArgument("record.payload", "must be set in a new record")
    record = record or Record(_NEW, workflow_id, 0, 0, 0, b"")
    size = record.size_bytes + sum(map(len, events))
    if payload is not None:
        before = "SELECT coalesce(sum(length(content)), 0) FROM workflow_parts WHERE record = ? AND number = 0"
        size += len(payload) - connection.execute(before, (record.id,)).fetchone()[0]
    if size > MAX_RECORD_BYTES:
        raise InvalidArgument("events", f"the record would have {size} bytes, more than {MAX_RECORD_BYTES}")
    number = record.id
    head = {"version": version + 1, "events": record.events + len(events), "bytes": size, "summary": summary}
    head["holder"] = holder or None
    if record.id == _NEW:
        name = {"namespace": namespace, "workflow_id": workflow_id}
        number = insert(connection, "workflow_records", {**name, **head}, returning="id")
    else:
        assigned = ", ".join(f"{column} = ?" for column in head)
        connection.execute(f"UPDATE workflow_records SET {assigned} WHERE id = ?", (*head.values(), number))
    parts = [*enumerate(events, start=record.events + 1)]
    if payload is not None:
        connection.execute("DELETE FROM workflow_parts WHERE record = ? AND number = 0", (number,))
        parts.insert(0, (0, payload))
    for place, content in parts:
        insert(connection, "workflow_parts", {"record": number, "number": place, "content": content})
    return version + 1


def find(connection: Connection, namespace: str, workflow_id: str) -> Record | None:
    which = f"WHERE namespace = ? AND workflow_id = ?{differences(connection).for_change}"
    row = connection.execute(f"{_HEADS} {which}", (namespace, workflow_id)).fetchone()
    return None if row is None else Record(*row)


def read(
    connection: Connection, namespace: str, workflow_id: str, after_event: int, *, payload: bool = True
) -> Content | None:
    """Return a record without its first `after_event` events. Raises LedgerDamaged."""
    record = find(connection, namespace, workflow_id)
    if record is None:
        return None
    after = min(after_event, record.events)
    which = "(number = 0 OR number > ?)" if payload else "number > ?"
    rows = connection.execute(
        f"SELECT number, content FROM workflow_parts WHERE record = ? AND {which} ORDER BY number", (record.id, after)
    ).fetchall()
    if [row[0] for row in rows] != [*[0] * payload, *range(after + 1, record.events + 1)]:
        raise LedgerDamaged(f"the record of workflow {workflow_id!r}")
    contents = [content for _, content in rows]
    return Content(record, contents.pop(0) if payload else None, contents)


def page(connection: Connection, namespace: str, before: int, limit: int) -> list[Record]:
    rows = connection.execute(
        f"{_HEADS} WHERE namespace = ? AND id < ? ORDER BY id DESC LIMIT ?", (namespace, before, limit)
    )
    return [Record(*row) for row in rows]


def held(connection: Connection, holder: str) -> list[tuple[str, str]]:
    """Return namespace and id of the runs that a gateway continues."""
    return connection.execute(f"{_NAMES} WHERE holder = ?", (holder,)).fetchall()


def unattended(connection: Connection, there: Collection[str], limit: int) -> list[tuple[str, str]]:
    """Return namespace and id of runs whose holder is not among `there`, the newest first: the oldest may be some that
    nobody can take over.
    """
    marks = ", ".join("?" * len(there))
    # By id alone SQLite would walk the table in that order, every second, instead of the few rows of the index.
    which = f"WHERE holder IS NOT NULL AND holder NOT IN ({marks}) ORDER BY id + 0 DESC LIMIT ?"
    return connection.execute(f"{_NAMES} {which}", (*there, limit)).fetchall()


def delete(connection: Connection, namespace: str, workflow_id: str, version: int) -> None:
    """Delete a record, damaged or not. Raises NotFound, and Aborted for another version; 0 is any."""
    which = f"WHERE namespace = ? AND workflow_id = ?{differences(connection).for_change}"
    row = connection.execute(f"SELECT id, version FROM workflow_records {which}", (namespace, workflow_id)).fetchone()
    if row is None:
        raise NotFound("workflow", workflow_id)
    number, present = row
    if version not in (0, present):
        raise _moved(present, version)
    connection.execute("DELETE FROM workflow_records WHERE id = ?", (number,))


_NEW: Final = 0
_HEADS: Final = "SELECT id, workflow_id, version, events, bytes, summary, coalesce(holder, '') FROM workflow_records"
_NAMES: Final = "SELECT namespace, workflow_id FROM workflow_records"


def _moved(present: int, version: int) -> Aborted:
    return Aborted(f"the record is at version {present}, not {version}; read it and try again")
