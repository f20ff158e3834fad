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


def test_what_may_be_there() -> None:
    assert LIMITS.allows(1000, 50)
    assert not LIMITS.allows(1001, 50)
    assert not LIMITS.allows(1000, 49)


def test_by_default_half_of_what_is_free_and_there() -> None:
    assert DiskLimits().fixed(2 * GIB, 10 * GIB).warm_bytes == 6 * GIB
    fixed = DiskLimits(1000, 5, 0.9, 0.5).fixed(0, 10)
    assert fixed == FixedLimits(1000, 900, 500, 5)


def test_the_refusal_says_what_to_do() -> None:
    assert LIMITS.refusal(900, 50, lambda: 0, "/data") == ""
    full = LIMITS.refusal(950, 50, lambda: 940, "/data")
    assert "950 bytes of 1000 bytes (--warm-bytes)" in full and "940 bytes belong to pinned" in full
    floor = LIMITS.refusal(0, 20, lambda: 0, "/data")
    assert "/data has 20 bytes free" in floor and "--free-bytes-floor" in floor
