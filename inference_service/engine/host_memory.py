"""Host memory of this process, by the system and its cgroups. A look-up takes 0.1 ms."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

_OWN = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


class Limit(NamedTuple):
    """In bytes."""

    limit_bytes: int
    used_bytes: int


def total_bytes() -> int:
    return min([psutil.virtual_memory().total, *(each.limit_bytes for each in limits())])


def available_bytes() -> int:
    """Never negative."""
    left = (each.limit_bytes - each.used_bytes for each in limits())
    return max(0, min([psutil.virtual_memory().available, *left]))


def limits(own: Path = _OWN, root: Path = _ROOT) -> Iterator[Limit]:
    """Cached files count as free."""
    lines = own.read_text(encoding="utf-8").splitlines() if own.exists() else ()
    for inner in (root / line.removeprefix("0::/") for line in lines if line.startswith("0::/")):
        for place in (each for each in (inner, *inner.parents) if each.is_relative_to(root)):
            with suppress(OSError, ValueError):  # No such file, or "max".
                most = int((place / "memory.max").read_text(encoding="ascii"))
                yield Limit(most, int((place / "memory.current").read_text(encoding="ascii")) - _cached_files(place))


def _cached_files(place: Path) -> int:
    """0 if unknown, so that the limit still counts."""
    statistics = place / "memory.stat"
    lines = statistics.read_text(encoding="ascii").splitlines() if statistics.exists() else ()
    return sum(int(value) for name, value in map(str.split, lines) if name in ("inactive_file", "active_file"))
