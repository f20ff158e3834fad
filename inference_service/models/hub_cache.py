"""Checks whether a hub's model is complete in the local cache. Imports no MLX, which takes seconds."""

from pathlib import Path

from huggingface_hub import get_cached_repo_tree, snapshot_download
from huggingface_hub.errors import CachedRepoTreeNotFoundError, HFValidationError, LocalEntryNotFoundError

from inference_service.models.weight_files import CONFIG, WEIGHTS, lacking, weight_files


def is_here(source: str) -> bool:
    """Return whether config and weights are in the cache; False if `source` is no hub id."""
    try:
        snapshot = snapshot_download(source, local_files_only=True, allow_patterns=[CONFIG, WEIGHTS])
        return is_whole(source, Path(snapshot))
    except (HFValidationError, LocalEntryNotFoundError, OSError):
        return False


def is_whole(source: str, snapshot: Path) -> bool:
    """Return whether config and weights are in a snapshot that is not known to be incomplete.

    huggingface_hub only knows its own downloads; other programs may have cached parts.
    """
    if not (snapshot / CONFIG).is_file() or not weight_files(snapshot):
        return False
    try:
        return bool(get_cached_repo_tree(source))
    except CachedRepoTreeNotFoundError:
        return not lacking(snapshot)
