"""The time by which agents are idle: it goes on as time does, whatever is done to the machine's clock.

A machine's clock is set: by NTP, by hand, by a host. An agent whose idle time is over is deleted for good, so no step
of that clock may count as idle time. The rule, as README has it:

- While the machine is up, asleep or not, time is what passes since its boot, which cannot be set; a restart of the
  store changes nothing.
- How long the machine was off is known from the clock alone. That time counts once the store has run for an hour on a
  clock that goes evenly; a step within that hour corrects it, and the hour begins anew. Time never goes back.

What this costs: a virtual machine that was paused, or whose disk was restored, may count less than has passed.
"""

import ctypes
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from cache_service.ledger.database import Database

_SECOND: Final = 10**9
SETTLING: Final = 3600 * _SECOND
"""How long the clock has to go evenly until time that the machine was off counts, in nanoseconds."""
STEP: Final = 5 * _SECOND
"""What a clock that is not set loses or gains between two readings at most; they are seconds apart."""
_KEPT: Final = 600 * _SECOND
"""How often the time is written down, so that little of it is lost where the machine fails."""

BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS' monotonic one counts sleep, too
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Reading(NamedTuple):
    """The machine's clocks: which boot it is ("" if unknown), nanoseconds since then, and nanoseconds since 1970."""

    boot: str
    awake: int
    wall: int


class Moment(NamedTuple):
    """Now, as people's clocks have it, which is what is shown; and by the store's own, which says who is idle."""

    wall: int
    used: int


class Time(NamedTuple):
    """The store's time at a reading. `off` is time that does not count yet, and may be negative; None: none is open.

    `even_since` is since when the clock has gone evenly, in the reading's `awake`.
    """

    time: int
    off: int | None
    read: Reading
    even_since: int


def resumed(time: int, off: int | None, then: Reading, now: Reading) -> Time:
    """The time at a start, from what was written down at another reading."""
    passed, shown = now.awake - then.awake, now.wall - then.wall
    if now.boot and now.boot == then.boot and passed >= 0:
        return Time(time + passed, None if off is None else off + shown - passed, now, now.awake)
    return Time(time, (off or 0) + shown, now, now.awake)


def advanced(before: Time, now: Reading) -> Time:
    """The time at a later reading of the same process."""
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
    """The clocks of this machine."""
    return Reading(_BOOT, time.clock_gettime_ns(BOOT_CLOCK), time.time_ns())


class LedgerClock(Protocol):
    """The time by which agents are idle, whoever keeps it. `advance` on one thread, all else on any."""

    def time(self) -> int:
        """Nanoseconds on a scale that begins somewhere near 1970, and never goes back."""

    def now(self) -> Moment:
        """This moment, for what is stamped with it."""

    def advance(self) -> None:
        """See how the machine's clock goes. Call it every few seconds."""


class Clock:
    """The store's time, kept in its database. `now` and `time` on any thread, `advance` on one."""

    def __init__(self, database: Database, read: Callable[[], Reading] = read) -> None:
        """Go on from where the last process of this directory was. Blocks. Raises what a write raises."""
        self._read = read
        self._database = database
        self._time: Time = database.write_blocking(self._begin)
        self._kept: Time | None = self._time
        database.before_commit.append(self._keep)

    def time(self) -> int:
        """Nanoseconds on a scale that begins somewhere near 1970, and never goes back."""
        return self.now().used

    def now(self) -> Moment:
        """This moment, for what is stamped with it."""
        known, found = self._time, self._read()
        return Moment(found.wall, known.time + found.awake - known.read.awake)

    def advance(self) -> None:
        """See how the machine's clock goes. Call it every few seconds."""
        self._time = advanced(self._time, self._read())

    async def keep(self) -> None:
        """Write the time down now, which also shows whether anything can be written. Raises what a write raises."""
        self._kept = None
        await self._database.write(lambda _: None)

    def stop(self) -> None:
        """Let the next transaction, which is the last, write the time down."""
        self._kept = None

    def _begin(self, connection: sqlite3.Connection) -> Time:
        now = self._read()
        row = connection.execute("SELECT time, off, boot, awake, wall FROM clock").fetchone()
        if row is not None:
            return resumed(row[0], row[1], Reading(*row[2:]), now)
        (used,) = connection.execute("SELECT max(used) FROM agents").fetchone()
        # A recovered directory has agents and no clock. Theirs may have been another than the machine's is now.
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
    """A name that this boot of the machine has and no other; "" where there is none."""
    if sys.platform == "darwin":
        name, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
        found = ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", name, ctypes.byref(size), None, 0)
        return name.value.decode() if found == 0 else ""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


_BOOT: Final = _boot()
