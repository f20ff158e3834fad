"""How much of the disk the warm tier may take, and when it has to evict. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from agentmem.sizes import binary_size

GIB = 1 << 30


class Reason(StrEnum):
    CAPACITY = "capacity"
    FLOOR = "floor"
    QUOTA = "quota"
    TTL = "ttl"
    REQUEST = "request"


@dataclass(frozen=True)
class DiskLimits:
    """`warm_bytes` None: half of what is free at start plus what is there already. Above the share `high` of it agents
    are evicted until the tier is below the share `low`.
    """

    warm_bytes: int | None = None
    free_bytes_floor: int = GIB
    high: float = 0.95
    low: float = 0.85

    def fixed(self, used: int, free: int) -> "FixedLimits":
        warm_bytes = (used + free) // 2 if self.warm_bytes is None else self.warm_bytes
        return FixedLimits(warm_bytes, int(warm_bytes * self.high), int(warm_bytes * self.low), self.free_bytes_floor)


@dataclass(frozen=True)
class FixedLimits:
    """In bytes."""

    warm_bytes: int
    high_bytes: int
    low_bytes: int
    free_bytes_floor: int

    def excess(self, used: int, free: int) -> tuple[int, Reason]:
        over = used - self.low_bytes if used > self.high_bytes else 0
        below = max(0, self.free_bytes_floor - free)
        return (below, Reason.FLOOR) if below > over else (over, Reason.CAPACITY)

    def allows(self, used: int, free: int) -> bool:
        return used <= self.warm_bytes and free >= self.free_bytes_floor

    def refusal(self, used: int, free: int, held: Callable[[], int], folder: str) -> str:
        """Return why there is no room for new files, or "". `held` counts pinned bytes."""
        if free < self.free_bytes_floor:
            return (
                f"the disk of {folder} has {binary_size(free)} free, and {binary_size(self.free_bytes_floor)} have to"
                " stay free (--free-bytes-floor); delete something, or lower the floor"
            )
        if used > self.high_bytes:
            return (
                f"the warm tier is full: {binary_size(used)} of {binary_size(self.warm_bytes)} (--warm-bytes), of which"
                f" {binary_size(held())} belong to pinned agents; unpin or delete agents, or raise the limit"
            )
        return ""
