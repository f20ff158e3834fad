"""What must be in no log, no trace and no error: the secrets of callers' keys, wherever a caller has put them."""

import re
from typing import Final

SHOWN: Final = re.compile(r"am_([0-9a-f]{12})_([A-Za-z0-9_-]{20,200})")
"""A key as its owner has it: its id and its secret."""


def without_secrets(text: str) -> str:
    """`text` with the secrets of keys in it left out; their ids stay."""
    return SHOWN.sub(r"am_\1_…", text) if "am_" in text else text
