"""A model's files, and whether they are complete in a hub's cache. Imports no MLX, which takes seconds.

Conversions may have their original's `model.safetensors.index.json`, so it is not read.
"""

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from huggingface_hub import get_cached_repo_tree, snapshot_download
from huggingface_hub.errors import CachedRepoTreeNotFoundError, HFValidationError, LocalEntryNotFoundError

CONFIG: Final = "config.json"
WEIGHTS: Final = "model*.safetensors"
_NUMBERED = re.compile(r"(.*-)(\d+)-of-(\d+)(\.safetensors)")
_MOST_FILES = 10_000


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


def weight_files(directory: Path) -> list[Path]:
    """Broken links are left out."""
    return sorted(path for path in directory.glob(WEIGHTS) if path.is_file())


def lacking(directory: Path) -> list[str]:
    """Return files that a download lacks, by numbers in names."""
    here = {path.name for path in weight_files(directory)}
    return sorted({sibling for name in here for sibling in _siblings(name)} - here)


def _siblings(name: str) -> Iterator[str]:
    if (parts := _NUMBERED.fullmatch(name)) and int(parts[3]) <= _MOST_FILES:
        for number in range(1, int(parts[3]) + 1):
            yield f"{parts[1]}{number:0{len(parts[2])}}-of-{parts[3]}{parts[4]}"


def is_here(source: str) -> bool:
    """False if `source` is no hub id."""
    try:
        snapshot = snapshot_download(source, local_files_only=True, allow_patterns=[CONFIG, WEIGHTS])
        return is_whole(source, Path(snapshot))
    except (HFValidationError, LocalEntryNotFoundError, OSError):
        return False


def is_whole(source: str, snapshot: Path) -> bool:
    """huggingface_hub only knows its own downloads; other programs may have cached parts."""
    if not (snapshot / CONFIG).is_file() or not weight_files(snapshot):
        return False
    try:
        return bool(get_cached_repo_tree(source))
    except CachedRepoTreeNotFoundError:
        return not lacking(snapshot)
