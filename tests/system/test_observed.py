"""Bytes that a service counts as in use."""

from __future__ import annotations

import pytest

from tests.allocated import malloc_bytes
from tests.system.load import MEGABYTE
from tests.system.observed import bytes_in_use


@pytest.mark.skipif(malloc_bytes() is None, reason="glibc 2.33 or newer says what is allocated")
def test_what_is_kept_is_in_use_and_what_was_let_go_is_not() -> None:
    before = bytes_in_use()
    kept = [bytes(size) for size in (50, 5_000, 500_000) for _ in range(3 * MEGABYTE // size)]
    assert 9 * MEGABYTE < bytes_in_use() - before < 14 * MEGABYTE
    del kept
    assert abs(bytes_in_use() - before) < MEGABYTE
