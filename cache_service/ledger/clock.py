"""The time of idle agents, which steps of the machine's clock do not affect: expired agents are deleted for good.

- While the machine is up, asleep or not, time since boot counts.
- Time while it was off is known from the clock, and counts once that has been even for an hour. A step within the hour
  corrects it, and the hour begins again. Time never goes back.
"""

import ctypes
import sqlite3
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from cache_service.ledger.database import Database

_SECOND: Final = 10**9
SETTLING: Final = 3600 * _SECOND
STEP: Final = 5 * _SECOND
"""The largest drift of a clock that is not set."""
_KEPT: Final = 600 * _SECOND

BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS' monotonic one counts sleep
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Reading(NamedTuple):
    """Nanoseconds since this boot, which may be "", and since 1970."""

    boot: str
    awake: int
    wall: int


class Moment(NamedTuple):
    """By people's clocks, and by the store's own."""

    wall: int
    used: int


class Time(NamedTuple):
    """The store's time at a reading; `off` does not count yet, and may be negative. `even_since` is in the reading's
    `awake`.
    """

    time: int
    off: int | None
    read: Reading
    even_since: int


def resumed(time: int, off: int | None, then: Reading, now: Reading) -> Time:
    passed, shown = now.awake - then.awake, now.wall - then.wall
    if now.boot and now.boot == then.boot and passed >= 0:
        return Time(time + passed, None if off is None else off + shown - passed, now, now.awake)
    return Time(time, (off or 0) + shown, now, now.awake)


def advanced(before: Time, now: Reading) -> Time:
    passed = now.awake - before.read.awake
    time, off, even_since = before.time + passed, before.off, before.even_since
    if off is not None:
        step = now.wall - before.read.wall - passed
        off += step
        if abs(step) > STEP:
            even_since = now.awake
        elif now.awake - even_since >= SETTLING:
            time, off = time + max(off, 0), None
    return Time(time, off, now, even_since)


def read() -> Reading:
    return Reading(_BOOT, time.clock_gettime_ns(BOOT_CLOCK), time.time_ns())


class LedgerClock(ABC):
    """`advance` on one thread, all else on any."""

    def time(self) -> int:
        """Return nanoseconds since about 1970, which never go back."""
        return self.now().used

    @abstractmethod
    def now(self) -> Moment: ...

    def advance(self) -> None:  # noqa: B027 - heartbeats move a cluster's
        """Call it every few seconds."""


class Clock(LedgerClock):
    def __init__(self, database: Database, read: Callable[[], Reading] = read) -> None:
        """Continue from the last process. Blocks. Raises a write's errors."""
        self._read = read
        self._database = database
        self._time: Time = database.write_blocking(self._begin)
        self._kept: Time | None = self._time
        database.before_commit.append(self._keep)

    def now(self) -> Moment:
        known, found = self._time, self._read()
        return Moment(found.wall, known.time + found.awake - known.read.awake)

    def advance(self) -> None:
        self._time = advanced(self._time, self._read())

    async def keep(self) -> None:
        """Write the time down, which shows whether writing works. Raises a write's errors."""
        self._kept = None
        await self._database.write(lambda _: None)

    def stop(self) -> None:
        """Let the next transaction write the time down."""
        self._kept = None

    def _begin(self, connection: sqlite3.Connection) -> Time:
        now = self._read()
        row = connection.execute("SELECT time, off, boot, awake, wall FROM clock").fetchone()
        if row is not None:
            return resumed(row[0], row[1], Reading(*row[2:]), now)
        (used,) = connection.execute("SELECT max(used) FROM agents").fetchone()
        # A recovered directory has no clock, and its own may have differed from the machine's.
        time = now.wall if used is None else min(used, now.wall)
        begun = Time(time, None if used is None else now.wall - time, now, now.awake)
        connection.execute("UPDATE agents SET used = :time WHERE used > :time", {"time": time})
        self._write(connection, begun)
        return begun

    def _keep(self, connection: sqlite3.Connection) -> None:
        known, kept = self._time, self._kept
        if kept and known.read.awake - kept.read.awake < _KEPT and (known.off is None) == (kept.off is None):
            return
        self._write(connection, advanced(known, self._read()))
        self._kept = known

    def _write(self, connection: sqlite3.Connection, found: Time) -> None:
        connection.execute(
            "INSERT OR REPLACE INTO clock (id, time, off, boot, awake, wall) VALUES (1, ?, ?, ?, ?, ?)",
            (found.time, found.off, *found.read),
        )


def _boot() -> str:
    if sys.platform == "darwin":
        name, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
        found = ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", name, ctypes.byref(size), None, 0)
        return name.value.decode() if found == 0 else ""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


_BOOT: Final = _boot()
