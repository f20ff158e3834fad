"""Both files, which are written again after each part: a machine may stop in the middle."""

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from agentmem.durable import sync
from gateway.cli.bench.machine.page import page
from gateway.cli.bench.machine.privacy import scrubbed, text

_MOST_NAMES: Final = 1000
_MOST_PLAIN: Final = 120
"""Letters of chip and model: a file system takes names of 255 bytes."""


class Files:
    def __init__(self, folder: Path, found: Mapping[str, Any], words: Mapping[str, str]) -> None:
        """Raises OSError."""
        self._words, self.problem = words, ""
        named = f"{found['machine']['chip']} {found['model']['name'].rpartition('/')[2]}"
        plain = re.sub(r"[^a-z0-9.]+", "-", text(named, words).lower())
        stem = f"agentmem-bench-{plain[:_MOST_PLAIN].strip('-.')}-{found['date']}"
        folder.mkdir(parents=True, exist_ok=True)
        stems = (stem, *(f"{stem}-{number}" for number in range(2, _MOST_NAMES)))
        free = next(each for each in stems if not (folder / f"{each}.json").exists())
        self.json, self.page = folder / f"{free}.json", folder / f"{free}.md"
        self._write(*self._texts(found))

    def write(self, found: Mapping[str, Any]) -> str:
        """Return the page, also where the disk does not take it: then `problem` says why."""
        texts, self.problem = self._texts(found), ""
        try:
            self._write(*texts)
        except OSError as error:
            self.problem = error.strerror or str(error)
        return texts[1]

    def _texts(self, found: Mapping[str, Any]) -> tuple[str, str]:
        shown = scrubbed(found, self._words)
        return json.dumps(_finite(shown), indent=1, allow_nan=False) + "\n", page(shown)

    def _write(self, figures: str, written: str) -> None:
        _replace(self.json, figures)
        _replace(self.page, written)


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
    try:
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            sync(file.fileno())
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise
