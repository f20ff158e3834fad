import sqlite3
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from agentmem.validation import AgentKey
from cache_service.connection import among, pieces
from cache_service.files import references
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import size_of
from cache_service.ledger import segments
from cache_service.offline import ledgers, warm_index
from cache_service.offline.database import find, reading
from cache_service.offline.findings import CannotCheck
from cache_service.tiers import quotas

_Name = tuple[int, bytes]


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
    if problem := warm_index.unusable(directory):
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


class _Files:
    def __init__(self, warm: sqlite3.Connection) -> None:
        self.sizes: dict[_Name, int] = {}
        self._computed: defaultdict[AgentKey, set[_Name]] = defaultdict(set)
        for kind, chain_hash, size, *key in warm.execute(
            "SELECT kind, chain_hash, size_bytes, namespace, agent_id, model_id FROM files"
        ):
            self.sizes[kind, chain_hash] = size
            self._computed[AgentKey(*key)].add((kind, chain_hash))
        self._held: defaultdict[str, set[_Name]] = defaultdict(set)
        for uid, kind, chain_hash in warm.execute("SELECT DISTINCT uid, kind, chain_hash FROM held"):
            self._held[uid].add((kind, chain_hash))
        self._holding = Counter(name for names in self._held.values() for name in names)

    @property
    def unowned(self) -> int:
        return sum(size for name, size in self.sizes.items() if not self._holding[name])

    def of(self, uid: str, key: AgentKey) -> tuple[int, int]:
        """Return an agent's own and shared bytes of KV."""
        held, computed = self._held[uid], self._computed[key]
        mine = held & self.sizes.keys()
        own = {name for name in mine if self._holding[name] == 1}
        own |= {name for name in computed if not self._holding[name]}
        return sum(map(self.sizes.__getitem__, own)), sum(map(self.sizes.__getitem__, mine - own))


def _usage(directory: DataDirectory, ledger_rows: sqlite3.Connection, warm: sqlite3.Connection) -> Usage:
    files, agents = _Files(warm), []
    for agent in (holder for holder in ledgers.holders(ledger_rows) if holder.snapshot is None):
        own, shared = files.of(agent.uid, agent.key)
        answered = "SELECT coalesce(sum(length(record)), 0) FROM turns WHERE uid = ?"
        (records,) = ledger_rows.execute(answered, (agent.uid,)).fetchone()
        for some in pieces(segments.segments_of(ledger_rows, agent.uid)):
            sizes = f"SELECT sum(8 * tokens + text_bytes) FROM segments WHERE {among('id', some)}"
            records += ledger_rows.execute(sizes, some).fetchone()[0]
        agents.append(AgentUsage(agent.key, own, shared, records))
    totals = {f"{kind.name.lower()}s": size for kind, size in references.sizes(warm).items()}
    totals["staging"] = size_of(directory.staging) if directory.staging.is_dir() else 0
    databases = directory.database, directory.warm_database
    totals["database"] = _size(*databases, *(path.with_name(f"{path.name}-wal") for path in databases))
    namespaces = Counter(quotas.ledger_sums(ledger_rows)) + Counter(quotas.all_kv_bytes(warm))
    return Usage(
        sorted(agents, key=lambda agent: (-agent.kv_own, agent.key)),
        files.unowned,
        totals,
        dict(sorted(namespaces.items())),
    )


def _size(*paths: Path) -> int:
    return sum(path.stat().st_size for path in paths if path.exists())
