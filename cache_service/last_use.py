"""When agents and files were last used: kept in memory, written with the next transaction, so that reads cost no fsync.

A crash loses the notes since the last commit: eviction may then misjudge by one turn.
"""

import sqlite3
import threading
from collections.abc import Iterable

from cache_service.files import FileName


class LastUse:
    """Notes of use. `note` on any thread; `flush` is the database's before_commit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._agents: dict[str, int] = {}
        self._files: dict[FileName, int] = {}

    def note(self, uid: str, names: Iterable[FileName], now: int) -> None:
        """An agent (or "", for none) and files were used at `now`, nanoseconds since 1970."""
        with self._lock:
            if uid:
                self._agents[uid] = now
            self._files.update((name, now) for name in names)

    def flush(self, connection: sqlite3.Connection) -> None:
        """Write all notes and forget them."""
        with self._lock:
            agents, self._agents = self._agents, {}
            files, self._files = self._files, {}
        connection.executemany(
            "UPDATE agents SET used = max(used, ?) WHERE uid = ?", [(now, uid) for uid, now in agents.items()]
        )
        connection.executemany(
            "UPDATE files SET used = max(used, ?) WHERE kind = ? AND chain_hash = ?",
            [(now, *name) for name, now in files.items()],
        )
