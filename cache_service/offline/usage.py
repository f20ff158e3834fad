import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from agentmem.validation import AgentKey
from cache_service.connection import among, pieces
from cache_service.files import references
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import size_of
from cache_service.ledger import segments
from cache_service.offline import ledgers
from cache_service.offline.check import unusable_warm
from cache_service.offline.database import find, reading
from cache_service.offline.findings import CannotCheck
from cache_service.tiers import quotas


@dataclass(frozen=True)
class AgentUsage:
    """Bytes of an agent with its snapshots; forks may share ledgers."""

    key: AgentKey
    kv_own: int
    kv_shared: int
    ledger: int


@dataclass(frozen=True)
class Usage:
    """`unowned` KV is found by name, and evicted first."""

    agents: list[AgentUsage]
    unowned: int
    totals: dict[str, int]
    namespaces: dict[str, int] = field(default_factory=dict)
    """As quotas limit them: KV, ledgers and workflow records, each once."""


def usage(root: Path) -> Usage:
    """Add up a directory, even one in use, without locks or changes. Raises CannotCheck."""
    directory = find(root)
    if problem := unusable_warm(directory):
        raise CannotCheck(f"{directory.warm_database} {problem}; start the store once, which makes it anew")
    try:
        with reading(directory.database) as ledger, reading(directory.warm_database) as warm:
            ledger.execute("BEGIN")  # one state for all that follows
            warm.execute("BEGIN")
            return _usage(directory, ledger, warm)
    except sqlite3.Error as error:
        raise CannotCheck(f"cannot read {directory.database}: {error}; run: agentmem store check {root}") from error
    except OSError as error:
        raise CannotCheck(f"cannot read {error.filename or directory.root}: {error.strerror}") from error


_HELD = (
    "WITH each AS (SELECT DISTINCT uid, kind, chain_hash FROM held),"
    " holders AS (SELECT kind, chain_hash, count(*) = 1 AS one FROM each GROUP BY kind, chain_hash)"
    " SELECT uid, sum(size_bytes * one), sum(size_bytes * (1 - one)) FROM each JOIN holders USING (kind, chain_hash)"
    " JOIN files USING (kind, chain_hash) GROUP BY uid"
)
_UNHELD = (
    "SELECT namespace, agent_id, model_id, sum(size_bytes) FROM files AS f WHERE NOT EXISTS (SELECT 1 FROM held AS h"
    " WHERE h.kind = f.kind AND h.chain_hash = f.chain_hash) GROUP BY namespace, agent_id, model_id"
)


def _usage(directory: DataDirectory, ledger_rows: sqlite3.Connection, warm: sqlite3.Connection) -> Usage:
    held = {uid: sizes for uid, *sizes in warm.execute(_HELD)}
    unheld = {AgentKey(*key): size for *key, size in warm.execute(_UNHELD)}
    agents = []
    for agent in (holder for holder in ledgers.holders(ledger_rows) if holder.snapshot is None):
        own, shared = held.get(agent.uid, (0, 0))
        answered = "SELECT coalesce(sum(length(record)), 0) FROM turns WHERE uid = ?"
        (records,) = ledger_rows.execute(answered, (agent.uid,)).fetchone()
        for some in pieces(segments.segments_of(ledger_rows, agent.uid)):
            sizes = f"SELECT sum(8 * tokens + text_bytes) FROM segments WHERE {among('id', some)}"
            records += ledger_rows.execute(sizes, some).fetchone()[0]
        agents.append(AgentUsage(agent.key, own + unheld.get(agent.key, 0), shared, records))
    totals = {f"{kind.name.lower()}s": size for kind, size in references.sizes(warm).items()}
    totals["staging"] = size_of(directory.staging) if directory.staging.is_dir() else 0
    databases = directory.database, directory.warm_database
    totals["database"] = _size(*databases, *(path.with_name(f"{path.name}-wal") for path in databases))
    namespaces = Counter(quotas.ledger_sums(ledger_rows)) + Counter(quotas.all_kv_bytes(warm))
    return Usage(
        sorted(agents, key=lambda agent: (-agent.kv_own, agent.key)),
        sum(unheld.values()),
        totals,
        dict(sorted(namespaces.items())),
    )


def _size(*paths: Path) -> int:
    return sum(path.stat().st_size for path in paths if path.exists())
