"""How much has to go, and what an operator is told."""

import pytest

from cache_service.tiers.limits import GIB, DiskLimits, FixedLimits, Reason

LIMITS = FixedLimits(1000, 900, 700, 50)


@pytest.mark.parametrize(
    ("used", "free", "excess"),
    [
        (900, 100, (0, Reason.CAPACITY)),
        (901, 100, (201, Reason.CAPACITY)),
        (10, 49, (1, Reason.FLOOR)),
        (901, 0, (201, Reason.CAPACITY)),
        (0, 0, (50, Reason.FLOOR)),
    ],
)
def test_what_should_go(used: int, free: int, excess: tuple[int, Reason]) -> None:
    assert LIMITS.excess(used, free) == excess


def test_by_default_half_of_what_is_free_and_there() -> None:
    assert DiskLimits().fixed(2 * GIB, 10 * GIB).warm_bytes == 6 * GIB
    fixed = DiskLimits(1000, 5, 0.9, 0.5).fixed(0, 10)
    assert fixed == FixedLimits(1000, 900, 500, 5)
