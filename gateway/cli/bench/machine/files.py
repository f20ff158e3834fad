"""Both files, which are written again after each part: a machine may stop in the middle."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from agentmem.durable import sync
from gateway.cli.bench.machine.page import page
from gateway.cli.bench.machine.privacy import scrubbed, text

_MOST_NAMES: Final = 1000


class Files:
    def __init__(self, folder: Path, found: Mapping[str, Any], words: Mapping[str, str]) -> None:
        """Raises OSError."""
        self._words = words
        named = f"{found['machine']['chip']} {found['model']['name'].rpartition('/')[2]}"
        plain = re.sub(r"[^a-z0-9.]+", "-", text(named, words).lower()).strip("-.")
        stem = f"agentmem-bench-{plain}-{found['date']}"
        folder.mkdir(parents=True, exist_ok=True)
        stems = (stem, *(f"{stem}-{number}" for number in range(2, _MOST_NAMES)))
        free = next(each for each in stems if not (folder / f"{each}.json").exists())
        self.json, self.page = folder / f"{free}.json", folder / f"{free}.md"
        self.write(found)

    def write(self, found: Mapping[str, Any]) -> str:
        """Return the page. Raises OSError."""
        shown = scrubbed(found, self._words)
        _replace(self.json, json.dumps(_finite(shown), indent=1, allow_nan=False) + "\n")
        written = page(shown)
        _replace(self.page, written)
        return written


def _finite(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case list() | tuple():
            return [_finite(each) for each in value]
        case dict():
            return {key: _finite(each) for key, each in value.items()}
    return value


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        sync(file.fileno())
    new.replace(path)
