"""Turns without a worker, and what a ledger's tables have: for tests of the functions of a connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from agentmem.kv.blockfile import FileKind, FileName
from agentmem.kv.ledger import NO_VERSION, Ledger, TurnPlace, Version
from agentmem.validation import AgentKey
from cache_service.connection import Connection
from cache_service.ledger import agents, object_references, segments
from cache_service.ledger.clock import Moment
from cache_service.ledger.turns import Turn

ADA, EVE = AgentKey("n", "ada", "m"), AgentKey("n", "eve", "m")
NOW = Moment(1, 1)
TABLES = (
    *("segments", "agents", "turns", "snapshots"),
    *("workflow_records", "workflow_parts", "objects", "object_refs"),
)
"""Tables that deleting all agents and runs empties."""


def part(*tokens: int, generated: int = 0) -> Ledger:
    ends = np.arange(1, len(tokens) + 1, dtype=np.uint32)
    text = bytes(token % 256 for token in tokens)
    return Ledger(np.array(tokens, dtype=np.uint32), text, ends, "t", (TurnPlace(len(tokens), generated),))


def turn(*tokens: int, key: AgentKey = ADA, base: Version = NO_VERSION, keep: int = 0, **fields: Any) -> Turn:
    given = {"request_id": "", "request_digest": b"", "record": b"", "conversation": agents.NO_CONVERSATION, **fields}
    return Turn(key, base, keep, part(*tokens), **given)


def tokens(connection: Connection, key: AgentKey = ADA) -> list[int]:
    found: list[int] = segments.read(connection, agents.existing(connection, key).head).token_ids.tolist()
    return found


OBJECTS = [FileName(FileKind.BLOCK, bytes([number]) * 16) for number in range(3)]
"""Files that have copies in the object store."""


def upload(connection: Connection, key: AgentKey, names: Iterable[FileName]) -> None:
    state = agents.existing(connection, key)
    wanted = set(names)
    for name in sorted(wanted):
        connection.execute(
            "INSERT INTO objects (kind, chain_hash, namespace, agent_id, model_id, fingerprint, parent, first_token,"
            " token_count, size_bytes, digest, present, generation)"
            " VALUES (?, ?, ?, ?, ?, 'f', ?, 0, 2, 3, ?, 1, '')"
            " ON CONFLICT DO NOTHING",
            (*name, *key, b"", b"d"),
        )
    object_references.publish(connection, state.version, wanted)


def count(connection: Connection, table: str) -> int:
    (number,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(number)


def charged(connection: Connection) -> dict[str, int]:
    rows = connection.execute("SELECT namespace, sum(ledger_bytes) FROM namespaces GROUP BY namespace")
    return {namespace: size for namespace, size in rows if size}


def counted(connection: Connection) -> dict[str, int]:
    rows = connection.execute(
        "SELECT namespace, sum(size) FROM (SELECT namespace, 8 * tokens + text_bytes AS size FROM segments"
        " UNION ALL SELECT namespace, length(record) FROM turns"
        " UNION ALL SELECT namespace, bytes + length(summary) FROM workflow_records) AS sizes GROUP BY namespace"
    )
    return {namespace: size for namespace, size in rows if size}


def damaged(connection: Connection) -> list[int]:
    return [*segments.damaged(connection)]
