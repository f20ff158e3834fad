"""Quotas of namespaces, and writes of ledgers that are held to them.

A segment counts 8 bytes a token and its text, however many branches stand on it.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from agentmem.errors import ResourceExhausted
from agentmem.sizes import binary_size
from cache_service.connection import Connection
from cache_service.files import holding
from cache_service.ledger.ledgers import Ledgers, Query, Work
from cache_service.tiers import eviction
from cache_service.tiers.warm_rows import WarmRows

_P = ParamSpec("_P")
_T = TypeVar("_T")

RETRY_SECONDS: Final = 30.0


class Usage(NamedTuple):
    kv: int
    ledger: int

    @property
    def total(self) -> int:
        return self.kv + self.ledger


def ledger_bytes(connection: Connection, namespace: str) -> int:
    counted = "SELECT coalesce(sum(ledger_bytes), 0) FROM namespaces WHERE namespace = ?"  # on PostgreSQL, of 64 rows
    return int(connection.execute(counted, (namespace,)).fetchone()[0])


def kv_bytes(connection: sqlite3.Connection, namespace: str) -> int:
    summed = "SELECT coalesce(sum(size_bytes), 0) FROM files WHERE namespace = ?"
    return int(connection.execute(summed, (namespace,)).fetchone()[0])


def all_ledger_bytes(connection: Connection) -> dict[str, int]:
    rows = connection.execute(
        "SELECT namespace, sum(ledger_bytes) FROM namespaces GROUP BY namespace HAVING sum(ledger_bytes) != 0"
    )
    return dict(rows.fetchall())


def all_kv_bytes(connection: sqlite3.Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT namespace, sum(size_bytes) FROM files GROUP BY namespace").fetchall())


def ledger_sums(connection: Connection) -> dict[str, int]:
    rows = connection.execute(
        "SELECT namespace, sum(bytes) FROM ("
        "SELECT namespace, 8 * tokens + text_bytes AS bytes FROM segments"
        " UNION ALL SELECT a.namespace, length(t.record) FROM turns AS t JOIN agents AS a USING (uid)"
        " UNION ALL SELECT namespace, bytes + length(summary) FROM workflow_records) AS counted"
        " WHERE namespace != '' GROUP BY namespace HAVING sum(bytes) > 0"
    )
    return dict(rows.fetchall())


def recount_ledgers(connection: sqlite3.Connection) -> None:
    """Nothing is written where the counts are right."""
    counted = ledger_sums(connection)
    if counted != all_ledger_bytes(connection):
        connection.execute("DELETE FROM namespaces")
        connection.executemany("INSERT INTO namespaces (namespace, ledger_bytes) VALUES (?, ?)", counted.items())


@dataclass(frozen=True)
class Quotas:
    """Bytes that each namespace may take, its own quota or everybody's."""

    everybody: int | None = None
    own: Mapping[str, int] = field(default_factory=dict)

    def of(self, namespace: str) -> int | None:
        return self.own.get(namespace, self.everybody)

    def excess(self, namespace: str, used: Usage) -> int:
        quota = self.of(namespace)
        return 0 if quota is None else max(0, used.total - quota)

    def has_room(self, namespace: str, ledger: int, held: int) -> bool:
        quota = self.of(namespace)
        return quota is None or ledger + held <= quota

    def refusal(self, namespace: str, used: Usage, held: int, *, of_ledger: bool) -> ResourceExhausted:
        """`used` is what would be there, `held` pinned KV."""
        quota, flag = self.of(namespace), "--namespaces" if namespace in self.own else "--namespace-bytes"
        advice = "unpin or delete agents, delete workflow runs, or raise the quota (the turn is kept, its KV is not)"
        if of_ledger:
            advice = "only KV is ever evicted; nothing was changed; delete agents or workflow runs, or raise the quota"
        return ResourceExhausted(
            f"the quota of namespace {namespace!r} is {binary_size(quota or 0)} ({flag}), and it would take"
            f" {binary_size(used.total)}: {binary_size(used.ledger)} of ledgers and workflow records, and"
            f" {binary_size(used.kv)} of KV, of which {binary_size(held)} belong to pinned agents; {advice}",
            retry_after=RETRY_SECONDS,
        )


NO_QUOTAS = Quotas()


@dataclass(eq=False)
class LedgerWriter:
    """Transactions that may add bytes to ledgers; KV makes room after the commit. Event loop."""

    _database: Ledgers
    _rows: WarmRows
    _quotas: Quotas
    _make_room: Callable[[str], object]

    async def commit(self, namespace: str, work: Query[Connection, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """As `write`, by Ledgers.commit."""
        return await self._run(self._database.commit, namespace, lambda connection: work(connection, *args, **kwargs))

    async def write(self, namespace: str, work: Query[Connection, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `work`, which changes this namespace's ledgers only. Raises ResourceExhausted without room beside pinned
        KV.
        """
        return await self._run(self._database.write, namespace, lambda connection: work(connection, *args, **kwargs))

    async def _run(self, write: Callable[..., Awaitable[Any]], namespace: str, work: Work[Connection, _T]) -> _T:
        if self._quotas.of(namespace) is None:
            unbounded: _T = await write(work)
            return unbounded
        result: _T
        result, exceeded = await write(self._within, namespace, work)
        if exceeded:
            self._make_room(namespace)
        return result

    def _within(self, connection: Connection, namespace: str, work: Work[Connection, _T]) -> tuple[_T, bool]:
        before = ledger_bytes(connection, namespace)
        result = work(connection)
        after = Usage(self._rows.read_blocking(kv_bytes, namespace), ledger_bytes(connection, namespace))
        exceeded = self._quotas.excess(namespace, after) > 0
        if exceeded and after.ledger > before:
            pinned = eviction.pinned(connection, namespace=namespace)
            held = self._rows.read_blocking(holding.held_bytes, pinned)
            if not self._quotas.has_room(namespace, after.ledger, held):
                raise self._quotas.refusal(namespace, after, held, of_ledger=True)
        return result, exceeded
