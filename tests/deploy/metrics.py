"""The documented metrics, read from their table."""

import re
from pathlib import Path

TABLE = Path(__file__).parents[2] / "deploy" / "METRICS.md"


def documented() -> set[str]:
    """The names in deploy/METRICS.md."""
    names = set(re.findall(r"^\| `(\w+)` \|", TABLE.read_text(), re.MULTILINE))
    assert len(names) > 40, TABLE
    return names
