"""warm.db as the store uses it: each change first follows the ledger's. Where the two differ, the ledger is right."""

import sqlite3
import time
from dataclasses import replace
from typing import Final, ParamSpec, TypeVar

from cache_service.files import holding, references, warm_database
from cache_service.files.directory import DataDirectory
from cache_service.files.holding import States
from cache_service.files.references import Dropped
from cache_service.ledger import kv_changes
from cache_service.ledger.database import Database
from cache_service.ledger.ledgers import Ledgers, Query

_PATIENCE: Final = 1.0
_PAUSE: Final = 0.01
"""Seconds to wait for a change that was just made: an erasure returns how much it has freed."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class WarmRows(Database):
    """`change` and `follow` on the thread of files."""

    def __init__(self, directory: DataDirectory, ledger: Ledgers, forgets: bool = True) -> None:
        """`forgets`: no other node follows the ledger."""
        super().__init__(directory.warm_database, warm_database.prepare)
        self._directory = directory
        self._ledger = ledger
        self._forgets = forgets

    def change(self, work: Query[sqlite3.Connection, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Follow the ledger, and run `work`, as one durable transaction. Raises as `write`."""

        def both(connection: sqlite3.Connection) -> tuple[Dropped, _T]:
            dropped, result = self._follow(connection), work(connection, *args, **kwargs)
            there = references.existing(connection, dropped.files)  # again, by what was done since
            return replace(dropped, files=[name for name in dropped.files if name not in there]), result

        dropped, result = self.write_blocking(both)
        self.unlink(dropped)
        return result

    def follow(self, *, erase: bool = False) -> Dropped:
        """Return what went, which is unlinked. Raises as `write`; the next `change` does it.

        With `erase` the ledger forgets what it said, and a scrub is owed.
        """
        dropped = Dropped()
        self.scrub_owed |= erase
        end = time.monotonic() + (_PATIENCE if erase else 0)
        while self._ledger.read_blocking(kv_changes.newest) > self.read_blocking(holding.followed):
            followed = self.write_blocking(self._follow)
            self.unlink(followed)
            dropped.add(followed)
            if time.monotonic() >= end:
                break
            time.sleep(_PAUSE)  # on PostgreSQL another transaction may have to end first
        if erase:
            self.forget_followed()
        return dropped

    def forget_followed(self) -> None:
        """Delete the ledger's rows, which name agents that may be gone."""
        if not self._forgets:
            return
        followed = self.read_blocking(holding.followed)
        if self._ledger.read_blocking(kv_changes.any_up_to, followed):
            self._ledger.erase(bool, kv_changes.forget, followed).result()

    def reconcile(self) -> None:
        """Follow all of the ledger, which may be one of before.

        Where others follow it too, it may have forgotten erasures: files that nobody holds go.
        """
        states = self._ledger.read_blocking(kv_changes.states, self.read_blocking(holding.known))
        self._owe_scrub(states)
        self.unlink(self.write_blocking(holding.reconcile, states))
        if not self._forgets:
            self.unlink(self.write_blocking(holding.drop_nobodys))

    def unlink(self, dropped: Dropped) -> None:
        self._directory.remove(dropped.files)

    def _follow(self, connection: sqlite3.Connection) -> Dropped:
        states = self._ledger.read_blocking(kv_changes.after, holding.followed(connection))
        self._owe_scrub(states)
        return holding.follow(connection, states)

    def _owe_scrub(self, states: States) -> None:
        """However long ago an erasure was, names and tokens go from the file; an erased source's with its last move."""
        self.scrub_owed |= any(change.source_uid not in states.versions for change in states.changes)
