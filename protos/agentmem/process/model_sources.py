"""What `--model` is given: a directory, a hub id, or a name for one of them. Imports nothing of the services' extra."""

import os
from pathlib import Path
from typing import Final

DEMO: Final = "demo"
"""The source, and the usual name, of the bundled model."""


def parse(given: str) -> tuple[str, str]:
    """Name and source of `NAME=SOURCE`, or of a source alone: then a path's last part or the whole hub id is the name.

    What begins like a path is one, whatever it holds: `/models/a=b` is a directory. Raises ValueError.
    """
    name, separator, source = given.partition("=")
    if not separator or is_path(name):
        source = given
        name = expanded(source).absolute().name if is_path(source) else source
        if name == "..":
            name = expanded(source).resolve().name
    if not name or not source:
        raise ValueError(f"--model {given!r}: give a path, a hub id, or NAME= one of them")
    return name, source


def is_path(source: str) -> bool:
    """Whether `source` is written as a path; what is not may still be a directory in the working directory."""
    return source.startswith(("/", ".", "~")) or source.endswith("/")


def expanded(path: str) -> Path:
    """`path` with the home directory for `~`; as it is where there is no such user, so that it is no directory."""
    return Path(os.path.expanduser(path))  # Path.expanduser raises
