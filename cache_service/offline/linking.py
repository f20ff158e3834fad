"""Files of KV for a recovered database: those that its ledgers name and that are whole, linked or copied, with rows.

What an agent refers to need not be read from the damaged database: the ledger's tokens name its files.
Where the ledgers are lost, too, the files have no owner, and are found by their names: a file's header says all of
its row but its digest, which is made of the bytes as they are. What agents said cannot be read from KV.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentmem import blockfile
from agentmem.blockfile import BlockFileError
from agentmem.identity import FileKind, FileName
from agentmem.validation import AgentKey
from cache_service.files import references
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import open_regular, sync, sync_directory
from cache_service.files.references import FileOrigin, FileRow
from cache_service.ledger import segments
from cache_service.ledger.segments import Head
from cache_service.offline import tree
from cache_service.offline.chains import Named, Names
from cache_service.offline.files import file_problem

_File = tuple[FileRow, FileOrigin]


def link(
    source: DataDirectory, target: DataDirectory, connection: sqlite3.Connection, files: Iterable[_File]
) -> dict[AgentKey, tuple[int, int]]:
    """Take over the files of all agents and snapshots; for each agent, how many are whole, and how many are not.

    A file is a hard link where that is possible; nothing in the old directory changes, not even a mode.
    """
    by_parent: dict[tuple[str, bytes], list[_File]] = {}
    for file in files:
        by_parent.setdefault((file[1].key.namespace, file[1].parent), []).append(file)
    fingerprints = {file[1].fingerprint for found in by_parent.values() for file in found}
    taken: dict[FileName, bool] = {}
    found: dict[AgentKey, tuple[set[FileName], set[FileName]]] = {}
    for holder in tree.holders(connection):
        whole, lost = found.setdefault(holder.key, (set(), set()))
        head = Head(holder.head, holder.tokens, holder.text_bytes, holder.turns)
        names = Names(segments.read(connection, head).token_ids)
        for row, origin in _named(names, holder.key.namespace, fingerprints, by_parent):
            if row.name not in taken:
                taken[row.name] = take(source, target, row, origin)
                if taken[row.name]:
                    references.add(connection, row, origin, time.time_ns())
            (whole if taken[row.name] else lost).add(row.name)
            if taken[row.name]:
                _refer(connection, holder, row.name)
    for folder in {target.folder(name) for name, is_there in taken.items() if is_there}:
        sync_directory(folder)
        sync_directory(folder.parent)
    return {key: (len(whole), len(lost)) for key, (whole, lost) in found.items()}


def _named(
    names: Names, namespace: str, fingerprints: Iterable[str], by_parent: dict[tuple[str, bytes], list[_File]]
) -> Iterator[_File]:
    """The files that a ledger's tokens name."""
    for fingerprint in fingerprints:
        for parent in names.chain(fingerprint, namespace):
            for row, origin in by_parent.get((namespace, parent), ()):
                end = row.first_token + row.token_count
                if origin.fingerprint == fingerprint and names.has(
                    Named(row.name, fingerprint, namespace, parent, end)
                ):
                    yield row, origin


def take(source: DataDirectory, target: DataDirectory, row: FileRow, origin: FileOrigin) -> bool:
    """Link or copy one file; whether it is what its row says."""
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
            return True
    except FileNotFoundError:
        return False
    new.unlink()
    return False


def _copy(old: Path, new: Path) -> bool:
    """Copy a regular file that can be read; False if there is none."""
    try:
        with (
            open(open_regular(old), "rb") as source,
            open(new, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as target,
        ):
            shutil.copyfileobj(source, target)
            target.flush()
            sync(target.fileno())
    except OSError as error:
        if error.filename == str(new):
            raise
        return False
    return True


def _refer(connection: sqlite3.Connection, holder: tree.Holder, name: FileName) -> None:
    table, column, value = (
        ("refs", "uid", holder.uid) if holder.snapshot is None else ("snapshot_refs", "snapshot", holder.snapshot)
    )
    connection.execute(f"INSERT OR IGNORE INTO {table} ({column}, kind, chain_hash) VALUES (?, ?, ?)", (value, *name))


def link_unclaimed(source: DataDirectory, target: DataDirectory, connection: sqlite3.Connection) -> int:
    """Take over all files that are what their headers say; how many."""
    folders = set()
    files = 0
    for name in source.published():
        found = _described(source, name)
        if found is not None and take(source, target, *found):
            references.add(connection, *found, time.time_ns())
            folders.add(target.folder(name))
            files += 1
    for folder in folders:
        sync_directory(folder)
        sync_directory(folder.parent)
    return files


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
