"""A model's files in a hub's cache, and whether they are complete. Imports no MLX, which takes seconds."""

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import get_cached_repo_tree, snapshot_download
from huggingface_hub.errors import CachedRepoTreeNotFoundError, HFValidationError, LocalEntryNotFoundError

from agentmem.process.model_folders import CONFIG, WEIGHTS, lacking, weight_files


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


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
