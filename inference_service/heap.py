"""When a process of its own looks for garbage: as models come and go, and not in the middle of turns.

A full collection takes 0.3 s of a worker on a GPU box, in which no thread runs. What is frozen is not looked at.
"""

import gc

_kept = False


def keep() -> None:
    """Freeze what is there, from now on. For a process that does nothing else."""
    global _kept
    _kept = True
    gc.freeze()


def kept() -> bool:
    """Return whether the process freezes its heap."""
    return _kept


def tidy() -> None:
    """Collect all garbage, and freeze what stays if that is so in this process."""
    if _kept:
        gc.unfreeze()
    gc.collect()
    if _kept:
        gc.freeze()
