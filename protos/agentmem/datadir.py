"""Whose a data directory is: looked at before anything is written to it, by whoever would be the first to write."""

import os
from pathlib import Path

DATABASE = "store.db"
_OWN = frozenset(
    {
        *("run", "worker", "logs", "up.lock", "lock", "probe", "gateway.json", "keys.json", "keys.json.lock"),
        *("blocks", "windows", "staging", "quarantine"),
        *("lost+found", ".DS_Store"),  # a disk's own, and macOS'
    }
)
_OWN_SUFFIXES = (".sock", ".sock.lock")


class ForeignDirectory(Exception):
    """A directory that holds something else; the message says what to do."""


def refuse_foreign(root: Path) -> None:
    """Raise ForeignDirectory unless `root` is absent, empty, or Agentmem's.

    It is ours if it has a store.db, or nothing but names that we give. Reads names only. Raises OSError.
    """
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return
    if DATABASE in names or all(map(_is_own, names)):
        return
    raise ForeignDirectory(f"{root} is not empty and not Agentmem's; choose a directory of its own as --data")


def _is_own(name: str) -> bool:
    return name in _OWN or name.startswith(DATABASE) or name.endswith(_OWN_SUFFIXES)
