"""Models in huggingface_hub's cache. Imports nothing of it, which takes a second."""

import os
from pathlib import Path
from typing import Final

from agentmem.process.model_folders import CONFIG, folder_problem, lacking, weight_files
from agentmem.process.model_sources import DEMO

_TRUE: Final = frozenset({"1", "ON", "YES", "TRUE"})
_NAMED: Final = 8


def is_offline() -> bool:
    """Return whether huggingface_hub's variables forbid the network."""
    return (os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or "").upper() in _TRUE


def has_token() -> bool:
    """Return whether huggingface_hub has a token to send."""
    if os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"):
        return True
    return _expanded(os.environ.get("HF_TOKEN_PATH") or f"{_home()}/token").exists()


def cache_directory() -> Path:
    given = os.environ
    return _expanded(given.get("HF_HUB_CACHE") or given.get("HUGGINGFACE_HUB_CACHE") or f"{_home()}/hub")


def _home() -> str:
    return os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(path)))


def snapshot(hub_id: str) -> Path | None:
    """Return a model's directory if its configuration and weights are there, which may have faults."""
    place = cache_directory() / "--".join(("models", *hub_id.split("/")))
    try:
        directory = place / "snapshots" / (place / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    whole = (directory / CONFIG).is_file() and weight_files(directory) and not lacking(directory)
    return directory if whole else None


def downloaded() -> list[str]:
    """Return the hub ids of models that can be loaded without a network."""
    ids = [path.name.removeprefix("models--").replace("--", "/", 1) for path in cache_directory().glob("models--*--*")]
    return [each for each in sorted(ids) if (found := snapshot(each)) is not None and not folder_problem(found)]


def here() -> str:
    """Return which models are on this machine, in words."""
    found = [*downloaded(), DEMO]
    named = found if len(found) <= _NAMED else [*found[:_NAMED], f"{len(found) - _NAMED} more"]
    return f"on this machine {'are' if len(named) > 1 else 'is'} {', '.join(named)}"
