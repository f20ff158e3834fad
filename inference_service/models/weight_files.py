"""Files of a model's weights, by their names and their headers. Imports no MLX, which takes seconds.

`model.safetensors.index.json` says which file has which tensor. Many conversions have that of the model that they were
made of: other files, other tensors. So it says only what a download lacks; whether a model is all there, mlx-lm says
when it gives the tensors to the network.
"""

import json
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

CONFIG: Final = "config.json"
WEIGHTS: Final = "model*.safetensors"
INDEX: Final = "model.safetensors.index.json"
_WHOLE: Final = "model.safetensors"
_NUMBERED = re.compile(r"(.*-)(\d+)-of-(\d+)(\.safetensors)")
_MOST_FILES = 10_000
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
"""The format's own limit."""


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The names that one of the patterns matches."""
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


def weight_files(directory: Path) -> list[Path]:
    """The files that are there, sorted; a link to nothing is none."""
    return sorted(path for path in directory.glob(WEIGHTS) if path.is_file())


def lacking(directory: Path) -> list[str]:
    """Names of the files that a download still lacks, sorted: by the numbers in names, and by the index.

    The index counts where it is about the files that are there: unless it names none of them although they are complete
    by their numbers, and unless they have the tensors that it puts elsewhere.
    """
    here = {path.name for path in weight_files(directory)}
    numbered = {sibling for name in here for sibling in _siblings(name)}
    places = _index(directory)
    named = set(matching(places.values(), [WEIGHTS]))
    complete = bool(numbered or _WHOLE in here) and numbered <= here
    if complete and not named & here:
        named = set()
    if named - here:
        tensors = {tensor for name in here for tensor in _tensors(directory / name)}
        named -= {place for place in named if all(name in tensors for name, file in places.items() if file == place)}
    return sorted((numbered | named) - here)


def _siblings(name: str) -> Iterator[str]:
    """The names of all files of which this one is a part, by its number; none for one that has no number."""
    if (parts := _NUMBERED.fullmatch(name)) and int(parts[3]) <= _MOST_FILES:
        for number in range(1, int(parts[3]) + 1):
            yield f"{parts[1]}{number:0{len(parts[2])}}-of-{parts[3]}{parts[4]}"


def _index(directory: Path) -> dict[str, str]:
    """Names of files by names of tensors; empty where there is no index that can be read."""
    try:
        found = json.loads((directory / INDEX).read_text(encoding="utf-8"))["weight_map"]
        return {str(name): str(file) for name, file in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _tensors(file: Path) -> set[str]:
    """Names of a file's tensors; empty for what is no safetensors file."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
            return set(json.loads(opened.read(length))) if length <= _MOST_HEADER_BYTES else set()
    except (OSError, ValueError, TypeError):
        return set()
