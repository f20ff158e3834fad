"""What takes up the disk: bytes by agent and by kind, and what deleting each agent would give back."""

import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from agentmem.identity import FileKind
from agentmem.validation import AgentKey
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import size_of
from cache_service.offline.findings import CannotCheck
from cache_service.offline.ledgers import cut_place
from cache_service.offline.opening import find, reading
from cache_service.offline.tree import ALL_REFS, Tree

_Name = tuple[int, bytes]


@dataclass(frozen=True)
class AgentUsage:
    """Bytes of one agent with its snapshots.

    KV is shared where another agent, or a snapshot of one, refers to the same file; a ledger may be shared by forks.
    """

    key: AgentKey
    kv_own: int
    kv_shared: int
    ledger: int
    quarantined: int
    frees: int
    """What its deletion would give back: files that no other agent has, and what no other needs of its segments."""


@dataclass(frozen=True)
class Usage:
    """Bytes of a data directory.

    `unowned` is KV that no agent and no snapshot refers to: it is kept, found by its name, and the first to be evicted.
    """

    agents: list[AgentUsage]
    unowned: int
    totals: dict[str, int]
    namespaces: dict[str, int] = field(default_factory=dict)
    """KV, quarantine, ledgers and records of workflow runs of each namespace, each byte once: what its quota bounds."""


def usage(root: Path) -> Usage:
    """Add up a directory, also one that a store is using; nothing is locked or changed. Raises CannotCheck."""
    directory = find(root)
    try:
        with reading(directory.database) as connection:
            connection.execute("BEGIN")  # one state for all that follows
            return _usage(directory, connection)
    except sqlite3.Error as error:
        raise CannotCheck(f"cannot read {directory.database}: {error}; run: agentmem store check {root}") from error
    except OSError as error:
        raise CannotCheck(f"cannot read {error.filename or directory.root}: {error.strerror}") from error


class _Files:
    """Published files and those in quarantine: their sizes, who computed them and who refers to them."""

    def __init__(self, directory: DataDirectory, connection: sqlite3.Connection) -> None:
        self.sizes: dict[_Name, int] = {}
        self.totals = Counter({"blocks": 0, "windows": 0})
        self.namespaces: Counter[str] = Counter()
        self._computed: dict[AgentKey, set[_Name]] = {}
        for kind, chain_hash, size, *key in connection.execute(
            "SELECT kind, chain_hash, size_bytes, namespace, agent_id, model_id FROM files"
        ):
            self.sizes[kind, chain_hash] = size
            self._computed.setdefault(AgentKey(*key), set()).add((kind, chain_hash))
            self.totals["blocks" if kind == FileKind.BLOCK else "windows"] += size
            self.namespaces[key[0]] += size
        self._refs: dict[str, set[_Name]] = {}
        for uid, kind, chain_hash in connection.execute(ALL_REFS):
            self._refs.setdefault(uid, set()).add((kind, chain_hash))
        self._referring = Counter(name for names in self._refs.values() for name in names)
        self._quarantined = _quarantined(directory, connection)
        for key, _, size in self._quarantined:
            self.namespaces[key.namespace] += size

    @property
    def unowned(self) -> int:
        return sum(size for name, size in self.sizes.items() if not self._referring[name])

    def of(self, uid: str, key: AgentKey) -> tuple[int, int, int]:
        """Bytes of an agent's KV that are only its, that are others', too, and that are in quarantine."""
        refs = self._refs.get(uid, set())
        mine = refs & self.sizes.keys()
        own = {name for name in mine if self._referring[name] == 1}
        computed = self._computed.get(key, set())
        own |= {name for name in computed if not self._referring[name]}
        aside = sum(
            size
            for whose, name, size in self._quarantined
            if whose == key or (whose.namespace == key.namespace and name in refs | computed)
        )
        return sum(map(self.sizes.__getitem__, own)), sum(map(self.sizes.__getitem__, mine - own)), aside


def _usage(directory: DataDirectory, connection: sqlite3.Connection) -> Usage:
    files, tree = _Files(directory, connection), Tree(connection)
    namespaces, agents = files.namespaces, []
    place: dict[int, str] = {}
    for agent in (holder for holder in tree.holders if holder.snapshot is None):
        own, shared, aside = files.of(agent.uid, agent.key)
        records = _records(connection, agent.uid)
        standing = tree.stands_on(agent.uid)
        ledger = records + sum(tree.segments[segment].bytes for segment in standing)
        frees = own + aside + records + _freed(connection, tree, agent.uid)
        agents.append(AgentUsage(agent.key, own, shared, ledger, aside, frees))
        namespaces[agent.key.namespace] += records
        place.update(dict.fromkeys(standing, agent.key.namespace))
    for segment, namespace in place.items():
        namespaces[namespace] += tree.segments[segment].bytes
    namespaces.update(_runs(connection))
    agents.sort(key=lambda agent: (-agent.frees, agent.key))
    totals = files.totals
    totals["quarantine"] = size_of(directory.quarantine) if directory.quarantine.is_dir() else 0
    totals["staging"] = size_of(directory.staging) if directory.staging.is_dir() else 0
    totals["database"] = sum(
        path.stat().st_size for path in (directory.database, directory.root / "store.db-wal") if path.exists()
    )
    return Usage(agents, files.unowned, dict(totals), dict(sorted(namespaces.items())))


def _freed(connection: sqlite3.Connection, tree: Tree, uid: str) -> int:
    """Bytes of segments that an agent's deletion erases, wholly or at their ends."""
    freed = 0
    for segment, needed in tree.left_by(uid):
        freed += segment.bytes
        place = None if needed is None else cut_place(connection, segment, segment.parent_tokens + needed)
        if needed is not None and place is not None:
            freed -= 8 * needed + place[1] - segment.parent_bytes
    return freed


def _records(connection: sqlite3.Connection, uid: str) -> int:
    """Bytes of what was answered in the agent's turns."""
    return int(connection.execute("SELECT total(length(record)) FROM turns WHERE uid = ?", (uid,)).fetchone()[0])


def _runs(connection: sqlite3.Connection) -> dict[str, int]:
    """Bytes of the records of workflow runs, by namespace."""
    rows = connection.execute("SELECT namespace, sum(bytes + length(summary)) FROM workflow_records GROUP BY namespace")
    return dict(rows)


def _quarantined(directory: DataDirectory, connection: sqlite3.Connection) -> list[tuple[AgentKey, _Name, int]]:
    """Whose each quarantined file is, what it was named, and its bytes with its note's."""
    found = []
    for file, kind, chain_hash, *key in connection.execute(
        "SELECT file, kind, chain_hash, namespace, agent_id, model_id FROM quarantined"
    ):
        size = sum(path.stat().st_size for path in directory.quarantine_paths(file) if path.exists())
        found.append((AgentKey(*key), (kind, chain_hash), size))
    return found
