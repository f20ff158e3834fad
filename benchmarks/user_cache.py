"""The directory of what benchmarks and tests fetched once for each user."""

import os
import tempfile
from pathlib import Path


class NoCache(Exception):
    """No directory can be written; says which."""


def user_cache(name: str) -> Path:
    """Raises NoCache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for folder in (home / "agentmem" / name, Path(tempfile.gettempdir()) / f"agentmem-{name}-{os.getuid()}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK):
            return folder
    raise NoCache(f"no directory for {name}: {home} cannot be written; set XDG_CACHE_HOME")
