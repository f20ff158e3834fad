"""Checksums of agents' memories and of records of runs, for SQLite has none: a flipped bit of a page is read as it is.

Triggers of the schema keep them, by a SQL function that every connection that writes store.db has to `register`; so no
way of writing a row can forget them. A row that is already wrong stays wrong when it is changed. Readers `verify`.
"""

import sqlite3
from collections.abc import Iterator
from typing import Any

import xxhash

from agentmem.errors import DataLoss
from agentmem.validation import AgentKey

FUNCTION = "agentmem_checksum"

COLUMNS = {
    "segments": "id, parent_id, parent_tokens, parent_bytes, tokens, text_bytes, generated_tokens, version, turns,"
    " tokenizer_hash, token_ids, text, offsets",
    "agents": "uid, namespace, agent_id, model_id, version, head_segment, tokens, text_bytes, turns",
    "snapshots": "id, uid, name, version, head_segment, tokens, text_bytes, turns",
    "turns": "uid, version, segment, request_id, request_digest, record",
    "workflow_records": "id, namespace, workflow_id, version, events, bytes, summary",
    "workflow_parts": "record, number, content",
}
"""What the checksum of a table's row is of."""


class LedgerDamaged(DataLoss):
    """Rows of a ledger are not what was written: they are not served."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is damaged in store.db and is not served; stop the store and run `agentmem store check`, then"
            " restore the directory from a backup, or delete what is damaged"
        )


def register(connection: sqlite3.Connection) -> None:
    """Give a connection the function that the schema's triggers call."""
    connection.create_function(FUNCTION, -1, checksum, deterministic=True)


def checksum(*values: Any) -> bytes:
    """xxh3_128 of a row's values, each with its type and length."""
    digest = xxhash.xxh3_128()
    for value in values:
        kind, data = _encoded(value)
        digest.update(kind + len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


def verify(what: str, *values: Any, found: Any) -> None:
    """Raise LedgerDamaged unless `found` is the checksum of these values."""
    if checksum(*values) != found:
        raise LedgerDamaged(what)


def of_agent(key: AgentKey) -> str:
    """An agent's ledger, for messages."""
    return f"the ledger of agent {key.agent_id!r} (model {key.model_id!r})"


def damaged(connection: sqlite3.Connection) -> Iterator[tuple[str, int]]:
    """All rows whose checksum is wrong: table and rowid. Reads everything."""
    register(connection)
    for table, columns in COLUMNS.items():
        rows = connection.execute(f"SELECT rowid FROM {table} WHERE checksum IS NOT {FUNCTION}({columns})")
        yield from ((table, rowid) for (rowid,) in rows)


def _encoded(value: Any) -> tuple[bytes, bytes]:
    if isinstance(value, bytes):
        return b"b", value
    if isinstance(value, str):
        return b"s", value.encode(errors="surrogatepass")
    if isinstance(value, int):
        return b"i", value.to_bytes(8, "little", signed=True)
    return b"n", b""
