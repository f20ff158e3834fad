"""Files of KV for a recovered database: those that its ledgers name and that are whole, linked or copied, with rows.

What an agent refers to need not be read from the damaged database: the ledger's tokens name its files.
Where the ledgers are lost, too, the files have no owner, and are found by their names: a file's header says all of
its row but its digest, which is made of the bytes as they are. What agents said cannot be read from KV.
"""

import os
import shutil
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from agentmem import blockfile
from agentmem.blockfile import BlockFileError
from agentmem.identity import FileKind, FileName
from agentmem.validation import AgentKey
from cache_service.files import references
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import open_private, open_regular, sync, sync_directory
from cache_service.files.references import FileOrigin, FileRow
from cache_service.ledger import segments
from cache_service.offline import tree
from cache_service.offline.chains import Names
from cache_service.offline.files import file_problem

_File = tuple[FileRow, FileOrigin]


def link(
    source: DataDirectory, target: DataDirectory, connection: sqlite3.Connection, files: Iterable[_File]
) -> dict[AgentKey, tuple[int, int]]:
    """Take over the files of all agents and snapshots; for each agent, how many are whole, and how many are not.

    A file is a hard link where that is possible; nothing in the old directory changes, not even a mode.
    """
    by_parent: defaultdict[tuple[str, str, bytes], list[_File]] = defaultdict(list)
    for row, origin in files:
        by_parent[origin.fingerprint, origin.key.namespace, origin.parent].append((row, origin))
    fingerprints = {fingerprint for fingerprint, _, _ in by_parent}
    taken: dict[FileName, bool] = {}
    found: defaultdict[AgentKey, dict[FileName, bool]] = defaultdict(dict)
    for holder in tree.holders(connection):
        namespace, names = holder.key.namespace, Names(segments.read(connection, holder.head).token_ids)
        for place in ((each, namespace, parent) for each in fingerprints for parent in names.chain(each, namespace)):
            for row, origin in by_parent.get(place, ()):
                if not names.has(row, origin):
                    continue
                if row.name not in taken:
                    taken[row.name] = _take(source, target, connection, row, origin)
                found[holder.key][row.name] = taken[row.name]
                if taken[row.name]:
                    table, column, value = holder.refs
                    insert = f"INSERT OR IGNORE INTO {table} ({column}, kind, chain_hash) VALUES (?, ?, ?)"
                    connection.execute(insert, (value, *row.name))
    _sync(target, taken)
    return {key: (sum(whole.values()), len(whole) - sum(whole.values())) for key, whole in found.items()}


def _sync(target: DataDirectory, names: Iterable[FileName]) -> None:
    """Make directories durable to which files of these names were taken over."""
    for folder in {target.folder(name) for name in names}:
        sync_directory(folder)
        sync_directory(folder.parent)


def _take(
    source: DataDirectory, target: DataDirectory, connection: sqlite3.Connection, row: FileRow, origin: FileOrigin
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
            references.add(connection, row, origin, time.time_ns())
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


def link_unclaimed(source: DataDirectory, target: DataDirectory, connection: sqlite3.Connection) -> int:
    """Take over all files that are what their headers say; how many."""
    described = filter(None, (_described(source, name) for name in source.published()))
    taken = [row.name for row, origin in described if _take(source, target, connection, row, origin)]
    _sync(target, taken)
    return len(taken)


def _described(source: DataDirectory, name: FileName) -> tuple[FileRow, FileOrigin] | None:
    """A file's row and origin by what is in it; None if it is none of ours, or damaged as far as that can be seen."""
    try:
        with open(open_regular(source.path(name)), "rb") as file:
            data, size = file.read(), os.fstat(file.fileno()).st_size
        header, _ = blockfile.parse(data, size)
    except (OSError, BlockFileError):
        return None
    if (header.chain_hash, header.window) != (name.chain_hash, name.kind is FileKind.WINDOW):
        return None
    row = FileRow(name, header.first_token, header.token_count, size, blockfile.digest(data))
    return row, FileOrigin(AgentKey(header.namespace, "", ""), header.fingerprint, header.parent)
