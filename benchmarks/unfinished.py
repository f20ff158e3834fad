"""Results of benchmarks that did not come to their end: beside the whole ones, and never in their place."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
SUFFIX = ".unfinished"
_ENDED = (None, 0, 1)
"""Statuses of one that came to its end; 1 where a figure was missed."""


@contextmanager
def kept_whole(directory: Path = RESULTS) -> Iterator[None]:
    """Where the block does not come to its end, what it wrote is put aside, and what it replaced is put back."""
    before = {path: path.read_bytes() for path in directory.glob("*.json")}
    try:
        yield
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code not in _ENDED:
            _put_aside(directory, before)
        raise


def _put_aside(directory: Path, before: dict[Path, bytes]) -> None:
    for path in sorted(directory.glob("*.json")):
        if before.get(path) == path.read_bytes():
            continue
        aside = path.replace(path.with_name(path.name + SUFFIX))
        if path in before:
            path.write_bytes(before[path])
        print(f"it did not come to its end; what it measured is in {aside}", file=sys.stderr)
