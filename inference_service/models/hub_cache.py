"""Whether a model of a hub is whole in the hub's local cache. Imports no MLX, which takes seconds."""

import json
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

CONFIG: Final = "config.json"
WEIGHTS: Final = "model*.safetensors"
_INDEX = "model.safetensors.index.json"


def is_here(source: str) -> bool:
    """Whether all of a model is in the cache; False for what is no hub id."""
    try:
        return is_whole(Path(snapshot_download(source, local_files_only=True)))
    except (HFValidationError, LocalEntryNotFoundError, OSError):
        return False


def is_whole(directory: Path) -> bool:
    """Whether config and weights are there. Other programs may have cached parts of the repository."""
    try:
        named = set(json.loads((directory / _INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        named = set()
    weights = [*directory.glob(WEIGHTS), *(directory / name for name in matching(named, [WEIGHTS]))]
    return (directory / CONFIG).is_file() and bool(weights) and all(file.is_file() for file in weights)


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The names that one of the patterns matches."""
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]
