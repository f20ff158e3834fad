"""Files of a model's weights, by their names. Imports no MLX, which takes seconds.

`model.safetensors.index.json` is not read: many conversions have that of the model that they were made of. Whether a
model is all there, mlx-lm says when it gives the tensors to the network.
"""

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

CONFIG: Final = "config.json"
WEIGHTS: Final = "model*.safetensors"
_NUMBERED = re.compile(r"(.*-)(\d+)-of-(\d+)(\.safetensors)")
_MOST_FILES = 10_000


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The names that one of the patterns matches."""
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


def weight_files(directory: Path) -> list[Path]:
    """The files that are there, sorted; a link to nothing is none."""
    return sorted(path for path in directory.glob(WEIGHTS) if path.is_file())


def lacking(directory: Path) -> list[str]:
    """Return the files that a download still lacks by the numbers in their names, sorted."""
    here = {path.name for path in weight_files(directory)}
    return sorted({sibling for name in here for sibling in _siblings(name)} - here)


def _siblings(name: str) -> Iterator[str]:
    """The names of all files of which this one is a part, by its number; none for one that has no number."""
    if (parts := _NUMBERED.fullmatch(name)) and int(parts[3]) <= _MOST_FILES:
        for number in range(1, int(parts[3]) + 1):
            yield f"{parts[1]}{number:0{len(parts[2])}}-of-{parts[3]}{parts[4]}"
