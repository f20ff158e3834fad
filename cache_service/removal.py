"""Deleting files that nobody needs any more, on a disk that may fail.

Whether a file is needed is a matter of rows, and those are gone when its turn comes. So a file that cannot be deleted
is no reason to fail a call that is done; it is remembered and tried again, and the next start deletes it as an orphan.
A directory in a file's place is none of ours: it holds nothing of what is deleted, and stays for its owner.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from agentmem.logs import event

log = logging.getLogger(__name__)


class Removal:
    """Deletes, and remembers what it could not delete. Use on one thread at a time."""

    def __init__(self) -> None:
        self._left: set[Path] = set()

    def remove(self, paths: Iterable[Path]) -> int:
        """Delete files, if they are there; how many of them the disk has kept."""
        kept = 0
        for path in paths:
            try:
                path.unlink(missing_ok=True)
                self._left.discard(path)
            except NotADirectoryError:  # nothing can be there
                continue
            except OSError as error:
                if path.is_dir():
                    event(log, "a directory is in a file's place: move it away", logging.WARNING, path=str(path))
                    continue
                if path not in self._left:
                    event(log, "file not deleted yet", logging.ERROR, file=path.name, error=error.strerror)
                self._left.add(path)
                kept += 1
        return kept

    def again(self) -> None:
        """Try what is left."""
        if self._left:
            self.remove(list(self._left))

    def needed(self, path: Path) -> None:
        """There is a new file of this name, so it has to stay."""
        self._left.discard(path)
