"""Model types of the installed mlx-lm work or are refused with their reasons, as the page says.

All types that the page says are refused are examined, and one in eight of those that work, the same ones each time; all
of them where the full matrix is wanted. What the engine makes of each kind of layer is tested beside the engine.
"""

import asyncio
import random
import sys
from collections.abc import Sequence

import pytest

from tests.full_matrix import FULL
from tests.model_types import installed, page
from tests.model_types.configs import TYPES
from tests.model_types.running import examined

_EVERY = 1 if FULL else 8
_PAGE = page.between(page.PAGE.read_text())


def test_every_type_has_a_config() -> None:
    """Add one for a type that a new mlx-lm brings, and delete those of types that it has no more."""
    assert set(TYPES) == set(installed.types())


def rows(section: str, names: Sequence[str]) -> list[str]:
    return [line for line in section.splitlines() if any(line.startswith(f"| `{name}`") for name in names)]


def chosen() -> list[str]:
    """Types to examine, in the order of the page."""
    works, _, _ = _PAGE.partition(" types are refused**")
    working = [name for name in installed.types() if rows(works, [name])]
    kept = random.Random(0).sample(working, -(-len(working) // _EVERY))
    return [name for name in installed.types() if name in kept or name not in working]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="the page is of Linux, where types that need Metal are refused")
@pytest.mark.timeout(1200)
def test_the_page_is_what_the_census_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # Other cores have other types, and tests of their own.
    names = chosen()
    lines = asyncio.run(examined(names, processes=2, limit=300.0))
    assert not [line for line in lines if line.faults]
    section = page.section(lines, installed.aliases(), installed.version())
    assert rows(_PAGE, names) == rows(section, names), page.AGAIN
    if FULL:
        assert section == _PAGE, page.AGAIN


def test_the_page_counts_what_it_has() -> None:
    """The counts above the tables are as new as the rows."""
    assert f"mlx-lm {installed.version()} has {len(installed.types())} model types." in _PAGE
    works, _, refused = _PAGE.partition(" types are refused**")
    counts = [len(rows(part, installed.types())) for part in (works, refused)]
    assert f"**{counts[0]} types work**" in works
    assert works.endswith(f"**{counts[1]}")
