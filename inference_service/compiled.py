"""Where MLX keeps what it compiles for CPUs: in a directory that nobody else can write.

MLX loads libraries from `mlx/VERSION/cpu` of the directory for temporary files, if they are there, without a look at
who put them there. In a /tmp that several users share that is somebody else's code, or a directory that the second
user cannot write.
"""

import logging
import os
from collections.abc import MutableMapping
from pathlib import Path

from agentmem.logs import event

log = logging.getLogger(__name__)


def keep_private(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set TMPDIR to a directory of this user's own, where it is not set. Before MLX compiles anything.

    Where there can be none (a service without a home, whose /tmp is its own) all stays as it is, and the log says so.
    """
    if environment.get("TMPDIR"):
        return
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(cache).expanduser() / "agentmem" / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # Raises where it is another user's.
    except (OSError, RuntimeError) as error:
        event(log, "what MLX compiles is kept in /tmp", logging.WARNING, folder=str(folder), error=str(error))
        return
    environment["TMPDIR"] = str(folder)
