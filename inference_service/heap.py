"""Garbage collection as models come and go, not during turns: a full one stops all threads for 0.3 s on a GPU box,
without frozen objects.
"""

import gc

_kept = False


def keep() -> None:
    """Freeze the heap, now and after each `tidy`."""
    global _kept
    _kept = True
    gc.freeze()


def kept() -> bool:
    return _kept


def tidy() -> None:
    if _kept:
        gc.unfreeze()
    gc.collect()
    if _kept:
        gc.freeze()
