"""The documented metrics, read from their table."""

import re
from pathlib import Path

TABLE = Path(__file__).parents[2] / "deploy" / "METRICS.md"


def of_a_cluster() -> set[str]:
    """Those of which a single machine's processes have no series."""
    names = set(re.findall(r"^\| `(\w+)` \|.*\| store, of a cluster \|", TABLE.read_text(), re.MULTILINE))
    assert names, TABLE
    return names


def documented() -> set[str]:
    """The names in deploy/METRICS.md."""
    names = set(re.findall(r"^\| `(\w+)` \|", TABLE.read_text(), re.MULTILINE))
    assert len(names) > 40, TABLE
    return names
