"""The limits of the warm tier and the quotas at work, on the thread of files."""

import logging
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace

from agentmem.errors import ResourceExhausted
from agentmem.kv.hints import TurnHints
from agentmem.process.logs import event
from agentmem.validation import AgentKey
from cache_service.connection import Connection
from cache_service.files import holding, references
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import size_of
from cache_service.files.references import Dropped
from cache_service.ledger import agents, object_references
from cache_service.ledger.ledgers import Ledgers
from cache_service.metrics import StoreMetrics
from cache_service.tiers import eviction
from cache_service.tiers import quotas as usage
from cache_service.tiers.eviction import Expired, LastUse
from cache_service.tiers.limits import DiskLimits, FixedLimits, Reason
from cache_service.tiers.quotas import RETRY_SECONDS, Quotas, Usage
from cache_service.tiers.warm_rows import WarmRows

log = logging.getLogger(__name__)


@dataclass(eq=False)
class WarmTier:
    """`start` once; then one thread at a time."""

    _directory: DataDirectory
    _database: Ledgers
    _rows: WarmRows
    _last_use: LastUse
    _metrics: StoreMetrics
    _configured: DiskLimits
    _quotas: Quotas

    def __post_init__(self) -> None:
        self._limits: FixedLimits | None = None
        self.hints = TurnHints()
        self.free: Callable[[], int] = lambda: shutil.disk_usage(self._directory.root).free

    def start(self) -> None:
        """Fix limits that depend on what is there."""
        self._limits = self._configured.fixed(self.used(), self.free())
        event(log, "limits", warm_bytes=self.limits.warm_bytes, used_bytes=self.used())

    @property
    def limits(self) -> FixedLimits:
        assert self._limits is not None, "start has not been called"
        return self._limits

    def used(self) -> int:
        return self._rows.read_blocking(references.total) + size_of(self._directory.staging)

    def enforce(self, protected: str | None = None, namespace: str | None = None) -> bool:
        """Evict until the tier is below its low watermark, if it is above the high one; return whether it is in its
        limits.

        With a `namespace`, this first makes room in its quota. `protected` stays, None for the agent that was used
        last, unless it will not speak again. Nothing is evicted where protected and pinned agents have too much by
        themselves.
        """
        if namespace is not None and not self._enforce_quota(namespace, protected):
            return False
        used, free = self.used(), self.free()
        goal, reason = self.limits.excess(used, free)
        if goal and not (protected and reason is Reason.CAPACITY and self._hopeless(protected)):
            self._evict(goal, reason, protected)
            used, free = self.used(), self.free()
        return self.limits.allows(used, free)

    def make_room(self, namespace: str) -> None:
        """Evict KV of a namespace, its last used agent's at last, until it is within its quota."""
        if not self._enforce_quota(namespace, None):
            self._enforce_quota(namespace, "")

    def enforce_quotas(self) -> None:
        """Quotas may have been lowered."""
        kv = self._rows.read_blocking(usage.all_kv_bytes)
        bounded = {namespace: size for namespace, size in kv.items() if self._quotas.of(namespace) is not None}
        ledger = self._database.read_blocking(usage.all_ledger_bytes) if bounded else {}  # of a cluster, all of it
        for namespace, size in bounded.items():
            if self._quotas.excess(namespace, Usage(size, ledger.get(namespace, 0))):
                self.make_room(namespace)

    def admit(self, namespace: str) -> None:
        """Raises ResourceExhausted if there is no room even so."""
        self.enforce(namespace=namespace)
        if (refusal := self.refusal(namespace)) is not None:
            raise refusal

    def refusal(self, namespace: str) -> ResourceExhausted | None:
        """Return the error for new files; None if there is room."""
        used = self._usage(namespace)
        if self._quotas.excess(namespace, used):
            held = self._held_bytes(None, namespace)
            return self._quotas.refusal(namespace, used, held, of_ledger=False)
        folder, held_by_all = str(self._directory.root), self._held_bytes
        problem = self.limits.refusal(self.used(), self.free(), held_by_all, folder)
        return ResourceExhausted(problem, retry_after=RETRY_SECONDS) if problem else None

    def evict_agent(self, key: AgentKey, *, objects: bool) -> Dropped:
        """Drop one agent's KV, pinned or not. Raises NotFound."""
        uid = self._database.read_blocking(agents.existing, key).version.uid
        had_objects = objects and self._database.write_blocking(object_references.drop, uid)
        dropped = self._rows.change(eviction.drop_agent, uid, key.namespace)
        self._finish(replace(dropped, agents=max(dropped.agents, int(had_objects))), Reason.REQUEST)
        return dropped

    def expire(self, now: int) -> None:
        """Drop the KV of agents, and erase agents, whose time is over. The databases are not scrubbed yet."""

        def work(connection: Connection) -> Expired:
            self._last_use.flush_agents(connection)
            return eviction.expire(connection, now, uids)

        def drop(connection: sqlite3.Connection) -> Dropped:
            dropped = Dropped()
            for uid in here:
                dropped.add(eviction.drop_agent(connection, uid, expired.idle[uid]))
            return dropped

        if not self._database.read_blocking(eviction.any_limited):
            return
        uids = self._rows.read_blocking(holding.known)
        expired = self._database.erase(lambda result: result.erased > 0, work).result()
        here = self._rows.read_blocking(holding.holding, expired.idle)
        if here or expired.had_objects:
            dropped = self._rows.change(drop) if here else Dropped()
            self._finish(replace(dropped, agents=len(here | expired.had_objects)), Reason.TTL)
        if expired.erased:
            erased = self._rows.follow(erase=True)
            event(log, "idle agents deleted", agents=expired.erased, freed_bytes=erased.freed_bytes)

    def _hopeless(self, protected: str) -> bool:
        return self._held_bytes(protected) + size_of(self._directory.staging) > self.limits.warm_bytes

    def _enforce_quota(self, namespace: str, protected: str | None) -> bool:
        if self._quotas.of(namespace) is None:
            return True
        used = self._usage(namespace)
        if excess := self._quotas.excess(namespace, used):
            held = self._held_bytes(protected, namespace)
            if protected and not self._quotas.has_room(namespace, used.ledger, held):
                return False
            self._evict(excess, Reason.QUOTA, protected, namespace)
            used = self._usage(namespace)
        return not self._quotas.excess(namespace, used)

    def _evict(self, goal: int, reason: Reason, protected: str | None, namespace: str | None = None) -> None:
        def order(connection: Connection) -> dict[AgentKey, str]:
            self._last_use.flush_agents(connection)
            stays = eviction.last_used(connection, self.hints, namespace) if protected is None else protected
            return eviction.idle_order(connection, uids, stays, namespace)

        def work(connection: sqlite3.Connection) -> Dropped:
            self._last_use.flush_files(connection)
            return eviction.evict(connection, goal, idle, self.hints, namespace)

        uids = self._rows.read_blocking(holding.known)
        idle = self._database.write_blocking(order)
        self._finish(self._rows.change(work), reason)

    def _usage(self, namespace: str) -> Usage:
        kv = self._rows.read_blocking(usage.kv_bytes, namespace)
        return Usage(kv, self._database.read_blocking(usage.ledger_bytes, namespace))

    def _held_bytes(self, protected: str | None = None, namespace: str | None = None) -> int:
        return self._rows.read_blocking(
            holding.held_bytes, self._database.read_blocking(eviction.pinned, protected, namespace)
        )

    def _finish(self, dropped: Dropped, reason: Reason) -> None:
        self._rows.unlink(dropped)
        self._metrics.evicted(reason, dropped.agents)
        if dropped.files:
            files, freed_bytes = len(dropped.files), dropped.freed_bytes
            event(log, "KV evicted", reason=reason, agents=dropped.agents, files=files, freed_bytes=freed_bytes)
