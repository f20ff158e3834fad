"""Every model type of the installed mlx-lm works or is refused with its reason, as the page says."""

import asyncio
import sys

import pytest

from benchmarks.census import installed, page
from benchmarks.census.configs import TYPES
from benchmarks.census.running import examined


def test_every_type_has_a_config() -> None:
    """Add one for a type that a new mlx-lm brings, and delete those of types that it has no more."""
    assert set(TYPES) == set(installed.types())


@pytest.mark.skipif(sys.platform == "darwin", reason="the page is of Linux, where types that need Metal are refused")
@pytest.mark.timeout(1200)
def test_the_page_is_what_the_census_finds() -> None:
    lines = asyncio.run(examined(installed.types(), processes=2, limit=300.0))
    assert not [line for line in lines if line.faults]
    section = page.section(lines, installed.aliases(), installed.version())
    assert page.outdated(page.PAGE.read_text(), section) == [], page.AGAIN
