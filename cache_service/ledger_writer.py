"""Writes that make ledgers grow, each within its namespace's quota."""

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from agentmem.errors import ResourceExhausted
from cache_service import eviction, usage
from cache_service.database import Database, Work
from cache_service.quotas import Quotas
from cache_service.warm import RETRY_SECONDS

_T = TypeVar("_T")


class LedgerWriter:
    """Transactions that may add bytes to ledgers. KV makes room for them, after the commit. Event loop.

    `make_room` is told a namespace that takes more than it may, and returns at once.
    """

    def __init__(self, database: Database, quotas: Quotas, make_room: Callable[[str], object]) -> None:
        self._database = database
        self._quotas = quotas
        self._make_room = make_room

    async def write(self, namespace: str, work: Work[_T]) -> _T:
        """Run `work`, which changes this namespace's ledgers only, as one durable transaction.

        Raises ResourceExhausted, and nothing has changed, if it adds bytes that there is no room for even when all KV
        that may go is gone.
        """
        if self._quotas.of(namespace) is None:
            return await self._database.write(work)
        result, exceeded = await self._database.write(partial(self._within, namespace, work))
        if exceeded:
            self._make_room(namespace)
        return result

    def _within(self, namespace: str, work: Work[_T], connection: sqlite3.Connection) -> tuple[_T, bool]:
        before = usage.of(connection, namespace)
        result = work(connection)
        after = usage.of(connection, namespace)
        exceeded = self._quotas.excess(namespace, after) > 0
        if exceeded and after.ledger > before.ledger:
            held = eviction.held_bytes(connection, namespace=namespace)
            if not self._quotas.has_room(namespace, after.ledger, held):
                problem = self._quotas.refusal_of_ledger(namespace, after, held)
                raise ResourceExhausted(problem, retry_after=RETRY_SECONDS)
        return result, exceeded
