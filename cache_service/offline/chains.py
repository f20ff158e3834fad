"""Chain hashes: whether the files that agents and snapshots refer to are named by the tokens of their ledgers.

A name is the hash of a fingerprint, a namespace and the ledger's tokens up to a position, so it can be computed again
from the ledger alone. A file may be named wrongly only through a fault of software: its bytes, header and row agree.
"""

import sqlite3

from agentmem.kv import blockfile
from agentmem.kv.blockfile import BLOCK_TOKENS, NO_PARENT, FileName
from agentmem.kv.ledger import Uint32
from cache_service.damage import LedgerDamaged
from cache_service.files import references
from cache_service.files.references import FileOrigin, FileRow
from cache_service.ledger import segments
from cache_service.ledger.segments import Head
from cache_service.offline import tree
from cache_service.offline.findings import Finding, Report
from cache_service.offline.tree import Holder


class Names:
    """The names that one ledger's files have to have."""

    def __init__(self, token_ids: Uint32) -> None:
        self._token_ids: list[int] = token_ids.tolist()
        self._chains: dict[tuple[str, str], list[bytes]] = {}

    def chain(self, fingerprint: str, namespace: str) -> list[bytes]:
        """NO_PARENT, and the names of all blocks."""
        chain = self._chains.get((fingerprint, namespace))
        if chain is None:
            names = blockfile.chain_hashes(fingerprint, namespace, self._token_ids)
            chain = self._chains[fingerprint, namespace] = [NO_PARENT, *names]
        return chain

    def has(self, row: FileRow, origin: FileOrigin) -> bool:
        """Whether the file is named by this ledger's tokens."""
        end = row.first_token + row.token_count
        if not 0 < end <= len(self._token_ids):
            return False
        first = (end - 1) // BLOCK_TOKENS
        parent = self.chain(origin.fingerprint, origin.key.namespace)[first]
        tokens = self._token_ids[first * BLOCK_TOKENS : end]
        expected = blockfile.chain_hash(origin.fingerprint, origin.key.namespace, parent, tokens)
        return (expected, parent) == (row.name.chain_hash, origin.parent)


def foreign(ledger: sqlite3.Connection, warm: sqlite3.Connection, report: Report) -> dict[FileName, tuple[str, ...]]:
    """Files that none of the agents that hold them can have computed, each with those agents.

    Agents whose ledgers cannot be read are reported. Raises sqlite3.DatabaseError.

    What states hold follows a turn off the request path, so files of an agent or a snapshot may be of a state before
    its own, which may not be kept. They prove a name right where they can; only an agent that is at its published
    version, and holds nothing but that state's files, proves one wrong.
    """
    right: set[FileName] = set()
    wrong: dict[FileName, set[str]] = {}
    published: dict[str, int] = dict(warm.execute("SELECT uid, version FROM published"))
    for holder in tree.holders(ledger):
        files, version = _held(warm, holder), published.get(holder.uid, 0)
        try:
            heads = _heads(ledger, holder, version) if files else []
            states = [Names(segments.read(ledger, head).token_ids) for head in heads]
        except (LedgerDamaged, ValueError, IndexError) as error:
            problem = f"its ledger cannot be read ({type(error).__name__})"
            consequence, repair = "its turns fail until it is deleted", "delete the agent, or recover"
            report(Finding("ledger", holder.where, problem, consequence, repair, (holder.agent,)))
            continue
        is_certain = holder.snapshot is None and version == holder.version
        for row, origin in files:
            if any(names.has(row, origin) for names in states):
                right.add(row.name)
            elif is_certain:
                wrong.setdefault(row.name, set()).add(holder.agent)
    return {name: tuple(sorted(agents)) for name, agents in wrong.items() if name not in right}


def _held(warm: sqlite3.Connection, holder: Holder) -> list[tuple[FileRow, FileOrigin]]:
    rows = warm.execute(
        f"SELECT {references.COLUMNS} FROM held JOIN files USING (kind, chain_hash) WHERE uid = ? AND snapshot = ?",
        holder.state,
    )
    return [*map(references.described, rows)]


def _heads(ledger: sqlite3.Connection, holder: Holder, published: int) -> list[Head]:
    """The holder's ledger, and that of the agent's published version, where it is kept."""
    rows = ledger.execute(
        "SELECT s.id, s.parent_tokens + s.tokens, s.parent_bytes + s.text_bytes, s.turns FROM agents AS a"
        " JOIN turns AS t ON t.uid = a.uid AND t.version = :published JOIN segments AS s ON s.id = t.segment"
        " WHERE a.uid = :uid AND a.version != :published UNION"
        " SELECT head_segment, tokens, text_bytes, turns FROM snapshots WHERE uid = :uid AND version = :published",
        {"uid": holder.uid, "published": published},
    )
    return [holder.head, *(Head(*row) for row in rows)]
