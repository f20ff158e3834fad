"""Files of KV for a recovered directory: those that its ledgers name and that are whole, linked or copied, with rows.

What an agent holds need not be read from a damaged database: the ledger's tokens name its files.
Where the ledgers are lost, too, the files have no owner, and are found by their names. What agents said cannot be read
from KV.
"""

import os
import shutil
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from agentmem.kv.blockfile import FileName
from agentmem.validation import AgentKey
from cache_service.files import holding, references
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import open_private, open_regular, sync, sync_directory
from cache_service.files.references import FileOrigin, FileRow
from cache_service.offline import adoption
from cache_service.offline.files import file_problem


def link(
    source: DataDirectory,
    target: DataDirectory,
    ledger: sqlite3.Connection,
    warm: sqlite3.Connection,
    files: Iterable[tuple[FileRow, FileOrigin]],
) -> dict[AgentKey, tuple[int, int]]:
    """Take over the files of all agents and snapshots; for each agent, how many are whole, and how many are not.

    A file is a hard link where that is possible; nothing in the old directory changes, not even a mode.
    """
    taken: dict[FileName, bool] = {}
    found: defaultdict[AgentKey, dict[FileName, bool]] = defaultdict(dict)
    for holder, row, origin in adoption.named(ledger, files):
        if row.name not in taken:
            taken[row.name] = _take(source, target, warm, row, origin)
        found[holder.key][row.name] = taken[row.name]
        if taken[row.name]:
            holding.hold(warm, [holder.state], row.name)
    adoption.note_published(ledger, warm)
    _sync(target, taken)
    return {key: (sum(whole.values()), len(whole) - sum(whole.values())) for key, whole in found.items()}


def _sync(target: DataDirectory, names: Iterable[FileName]) -> None:
    """Make directories durable to which files of these names were taken over."""
    for folder in {target.folder(name) for name in names}:
        sync_directory(folder)
        sync_directory(folder.parent)


def _take(
    source: DataDirectory, target: DataDirectory, warm: sqlite3.Connection, row: FileRow, origin: FileOrigin
) -> bool:
    """Link or copy one file, and add its row; whether it is what that says."""
    old, new = source.path(row.name), target.path(row.name)
    new.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        if old.is_symlink() or old.stat().st_mode & 0o7777 != 0o600:
            raise PermissionError  # a link would share the mode
        os.link(old, new)
    except OSError:
        if not _copy(old, new):
            return False
    try:
        if not file_problem(new, row, origin):
            references.add(warm, row, origin, time.time_ns())
            return True
    except FileNotFoundError:
        return False
    new.unlink()
    return False


def _copy(old: Path, new: Path) -> bool:
    """Copy a regular file that can be read; False if there is none."""
    try:
        with open(open_regular(old), "rb") as source, open_private(new) as target:
            shutil.copyfileobj(source, target)
            target.flush()
            sync(target.fileno())
    except OSError as error:
        if error.filename == str(new):
            raise
        return False
    return True


def link_unclaimed(source: DataDirectory, target: DataDirectory, warm: sqlite3.Connection) -> int:
    """Take over all files that are what their headers say; how many."""
    files = adoption.described(source)
    taken = [row.name for row, origin in files if _take(source, target, warm, row, origin)]
    _sync(target, taken)
    return len(taken)
