"""The host's memory now: how much this process may have, and how much it can still take.

The tightest limit counts: the system's available memory, the limits of the process's cgroup and its parents (containers
have one), and its own (`ulimit -v`, `ulimit -d`). A look-up of all takes about 0.1 ms.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

_OWN = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_STATM = Path("/proc/self/statm")
_STATM_FIELDS = ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5))
"""Limits, and the field of statm that counts against each: all pages, and data pages."""


class Limit(NamedTuple):
    """A limit on memory, and how much of it is in use, in bytes."""

    limit_bytes: int
    used_bytes: int


def total_bytes() -> int:
    """Return the bytes that this process may take at most: the system's memory, or the tightest limit."""
    return min([psutil.virtual_memory().total, *(each.limit_bytes for each in limits())])


def available_bytes() -> int:
    """Return the bytes that this process can take before an allocation fails or the system kills it; never negative."""
    left = (each.limit_bytes - each.used_bytes for each in limits())
    return max(0, min([psutil.virtual_memory().available, *left]))


def limits() -> list[Limit]:
    """Return all limits on this process, its cgroups' and its own; empty if there are none."""
    return [*cgroup_limits(), *_own_limits()]


def cgroup_limits(own: Path = _OWN, root: Path = _ROOT) -> Iterator[Limit]:
    """Yield the limits of this process's cgroup and its parents, version 2 or 1.

    Cached files count as free, as in the system's own figure: they go before anything is refused.
    """
    for line in own.read_text(encoding="utf-8").splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base, limit, usage, prefix = (
            (root, "memory.max", "memory.current", "")
            if not controllers
            else (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        )
        inner = base / path.lstrip("/")
        for place in (each for each in (inner, *inner.parents) if each.is_relative_to(base)):
            with suppress(OSError, ValueError):  # no limit: no such file, or "max"
                most = int((place / limit).read_text(encoding="ascii"))
                yield Limit(most, int((place / usage).read_text(encoding="ascii")) - _cached_files(place, prefix))


def _cached_files(place: Path, prefix: str) -> int:
    """Return the bytes of a cgroup's cached files; 0 if unknown, so that its limit still counts."""
    names, statistics = {f"{prefix}inactive_file", f"{prefix}active_file"}, place / "memory.stat"
    lines = statistics.read_text(encoding="ascii").splitlines() if statistics.exists() else ()
    return sum(int(value) for name, value in map(str.split, lines) if name in names)


def _own_limits() -> Iterator[Limit]:
    """Yield this process's own limits. Linux only: elsewhere it is unknown what counts against them."""
    if not _STATM.exists():
        return
    pages = _STATM.read_text(encoding="ascii").split()
    for which, field in _STATM_FIELDS:
        most, _ = resource.getrlimit(which)
        if most != resource.RLIM_INFINITY:
            yield Limit(most, int(pages[field]) * os.sysconf("SC_PAGE_SIZE"))
