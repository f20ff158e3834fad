"""The host's memory as it is now: what this process may have of it, and how much it could still take.

The tightest limit counts: what the system has available, the limits of the process's cgroup and of all above it
(containers have one), and its own (`ulimit -v`, `ulimit -d`). To look up all of them takes about 0.1 ms.
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
"""Limits, and which of statm's fields counts against each: all pages, and those of data."""


class Limit(NamedTuple):
    """A limit on memory, and how much of it is taken, in bytes."""

    limit_bytes: int
    used_bytes: int


def total_bytes() -> int:
    """Bytes that this process may take at most: the system's memory, or the tightest limit."""
    return min([psutil.virtual_memory().total, *(each.limit_bytes for each in limits())])


def available_bytes() -> int:
    """Bytes that this process can take now before an allocation fails or the system kills it; never negative."""
    left = (each.limit_bytes - each.used_bytes for each in limits())
    return max(0, min([psutil.virtual_memory().available, *left]))


def limits() -> list[Limit]:
    """All limits on this process, its cgroups' and its own; empty where there are none."""
    return [*cgroup_limits(), *_own_limits()]


def cgroup_limits(own: Path = _OWN, root: Path = _ROOT) -> Iterator[Limit]:
    """Those of this process's cgroup and of its parents, version 2 or 1.

    Cached files count as free, as they do in the system's own figure: they go before anything is refused.
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
            with suppress(OSError, ValueError):  # there is no limit: no such file, or "max"
                most = int((place / limit).read_text(encoding="ascii"))
                yield Limit(most, int((place / usage).read_text(encoding="ascii")) - _cached_files(place, prefix))


def _cached_files(place: Path, prefix: str) -> int:
    """Bytes of a cgroup's cached files; none where that is not said, so that its limit counts all the same."""
    names, statistics = {f"{prefix}inactive_file", f"{prefix}active_file"}, place / "memory.stat"
    lines = statistics.read_text(encoding="ascii").splitlines() if statistics.exists() else ()
    return sum(int(value) for name, value in map(str.split, lines) if name in names)


def _own_limits() -> Iterator[Limit]:
    """Those of this process alone, on Linux: elsewhere it is not known what counts against them."""
    if not _STATM.exists():
        return
    pages = _STATM.read_text(encoding="ascii").split()
    for which, field in _STATM_FIELDS:
        most, _ = resource.getrlimit(which)
        if most != resource.RLIM_INFINITY:
            yield Limit(most, int(pages[field]) * os.sysconf("SC_PAGE_SIZE"))
