"""Results of benchmarks that did not come to their end: beside the whole ones, and never in their place."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SUFFIX = ".unfinished"
_ENDED = (None, 0, 1)
"""Statuses of one that came to its end; 1 where a figure was missed."""
_replaced: dict[Path, bytes | None] = {}
"""What this process has written, and what was there before: others may write beside it."""


def replacing(path: Path) -> None:
    """Say that a result is about to be written."""
    if path not in _replaced:
        _replaced[path] = path.read_bytes() if path.exists() else None


@contextmanager
def kept_whole() -> Iterator[None]:
    """Where the block does not come to its end, what it wrote is put aside, and what it replaced is put back."""
    _replaced.clear()
    try:
        yield
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code not in _ENDED:
            _put_aside()
        raise


def _put_aside() -> None:
    for path, before in _replaced.items():
        if not path.exists() or path.read_bytes() == before:
            continue  # It was stopped before it had written that.
        aside = path.replace(path.with_name(path.name + SUFFIX))
        if before is not None:
            path.write_bytes(before)
        print(f"it did not come to its end; what it measured is in {aside}", file=sys.stderr)
