"""warm.db as the store uses it: each of its transactions first does what the ledger has said of states since the last.

So what a transaction finds of whom files are is never older than the ledger was when it began. What the ledger says
later is done later: nothing here is both databases' at once, and the ledger's word counts.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from agentmem.identity import FileName
from cache_service.files import holding, references
from cache_service.files.directory import DataDirectory
from cache_service.files.holding import KVChange
from cache_service.files.references import Dropped
from cache_service.ledger import kv_changes
from cache_service.ledger.database import Database, Query, Work

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(eq=False)
class WarmRows:
    """Rows of files. `write` and `follow` on the thread of files, `read` on the event loop, others on any thread."""

    _directory: DataDirectory
    _ledger: Database
    _database: Database

    async def read(self, work: Query[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `work`, with these arguments, in one consistent state."""
        return await self._database.read(work, *args, **kwargs)

    def read_blocking(self, work: Query[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """`read` for a thread that isn't the event loop's."""
        return self._database.read_blocking(work, *args, **kwargs)

    def read_within(self, seconds: float | None, work: Work[_T]) -> _T:
        """`read_blocking` that raises TimeoutError where it had to wait so long."""
        return self._database.read_within(seconds, work)

    def write(self, work: Query[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Follow the ledger, and run `work`, as one durable transaction. Raises what Database.write raises."""

        def both(connection: sqlite3.Connection) -> tuple[Dropped, _T]:
            return self._follow(connection), work(connection, *args, **kwargs)

        dropped, result = self._database.write_blocking(both)
        self.unlink(dropped)
        return result

    def write_queue(self, work: Query[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `work`, which changes only what waits to be uploaded, as one durable transaction. On threads."""
        return self._database.write_blocking(work, *args, **kwargs)

    def follow(self, *, erase: bool = False) -> tuple[Dropped, int]:
        """Follow the ledger; what went, and how many of its files could not be unlinked.

        With `erase`, names of what went are scrubbed from warm.db with the next `scrub`, as those of agents always are,
        and the ledger forgets what it said. Raises what Database.write raises; then it is done with the next `write`.
        """
        change = self._ledger.read_blocking(kv_changes.newest)
        if change <= self._database.read_blocking(holding.followed):
            dropped, kept = Dropped(), 0
        else:
            dropped = self._database.erase(lambda _: erase, self._follow).result()
            kept = self.unlink(dropped)
        if erase:
            self.forget_followed()
        return dropped, kept

    def forget_followed(self) -> None:
        """Let the ledger forget what was followed: its rows name agents that may be gone."""
        followed = self._database.read_blocking(holding.followed)
        if self._ledger.read_blocking(kv_changes.any_up_to, followed):
            self._ledger.erase(bool, kv_changes.forget, followed).result()

    def reconcile(self) -> None:
        """Follow the ledger, forget what it does not have, and count all bytes anew. Before serving."""
        states = self._ledger.read_blocking(kv_changes.states)
        self._owe_scrub(states[-1])
        self.unlink(self._database.write_blocking(holding.reconcile, *states))
        self._database.write_blocking(references.recount)

    def unlink(self, dropped: Dropped) -> int:
        """Unlink files whose rows a transaction has dropped, but those that have one again; how many could not be."""
        kept = self._directory.remove_quarantined(dropped.quarantined) if dropped.quarantined else 0
        return kept + (self.unlink_files(dropped.files) if dropped.files else 0)

    def unlink_files(self, names: Iterable[FileName]) -> int:
        """Likewise, of published files."""
        going = set(names)
        return self._directory.remove(going - self._database.read_blocking(references.existing, names=going))

    def after_commit(self, call: Callable[[], None]) -> None:
        """Call it, on the database's thread, after each transaction."""
        self._database.after_commit.append(call)

    @property
    def scrub_owed(self) -> bool:
        """Whether names of what was erased may still be in the file or its WAL."""
        return self._database.scrub_owed

    async def scrub(self, *, patient: bool = True) -> None:
        """See Database.scrub; nothing where it is not owed."""
        if self.scrub_owed:
            await asyncio.wrap_future(self._database.scrub(patient))

    def _follow(self, connection: sqlite3.Connection) -> Dropped:
        changes = self._ledger.read_blocking(kv_changes.after, holding.followed(connection))
        self._owe_scrub(changes)
        return holding.follow(connection, changes)

    def _owe_scrub(self, changes: Iterable[KVChange]) -> None:
        """Whoever it is that follows a deletion, and however long ago it was: names of who is gone go from the file."""
        self._database.scrub_owed |= any(change.agent_id is not None for change in changes)
