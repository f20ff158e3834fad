"""Values of `--model`. Imports nothing of the services' extra."""

import os
import unicodedata
from pathlib import Path
from typing import Final

DEMO: Final = "demo"
"""The bundled model's source and default name."""


def parse(given: str) -> tuple[str, str]:
    """Return name and source of `NAME=SOURCE`, or of a source, named by a path's last part or the whole hub id.

    A path may hold "=": `/models/a=b`. Raises ValueError.
    """
    name, separator, source = given.partition("=")
    if not separator or is_path(name):
        source = given
        name = expanded(source).absolute().name if is_path(source) else source
        if name == "..":
            name = expanded(source).resolve().name
    if not name or not source:
        raise ValueError(f"--model {given!r}: give a path, a hub id, or NAME= one of them")
    return unicodedata.normalize("NFC", name), source  # as keyboards write it; file systems of Macs may decompose


def is_path(source: str) -> bool:
    """Return whether `source` is written as a path; other sources may be directories, too."""
    return source.startswith(("/", ".", "~")) or source.endswith("/")


def expanded(path: str) -> Path:
    """Expand `~`, unless there is no such user."""
    return Path(os.path.expanduser(path))  # Path.expanduser raises
