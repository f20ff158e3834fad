"""The files: published ones against their rows, and whatever else lies in the directory."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from agentmem import blockfile
from agentmem.blockfile import BlockFileError, BlockHeader
from agentmem.identity import FileKind, FileName
from cache_service.files import quarantine, references
from cache_service.files.directory import DataDirectory, is_disposable
from cache_service.files.disk import open_regular
from cache_service.files.references import FileOrigin, FileRow
from cache_service.offline.findings import Finding, Mend, Report
from cache_service.offline.tree import ALL_REFS

_RECOMPUTED = "a turn that needs it computes its tokens again from the ledger"
_LEAKED = "takes up disk that nobody counts, and may hold what a deleted agent said"


def published(connection: sqlite3.Connection) -> Iterator[tuple[FileRow, FileOrigin]]:
    """All rows of published files."""
    return map(references.described, connection.execute(f"SELECT {references.COLUMNS} FROM files"))


def check_published(
    directory: DataDirectory, connection: sqlite3.Connection, foreign: dict[FileName, tuple[str, ...]], report: Report
) -> None:
    """Report every published file that is gone or not what its row says, and those in `foreign`.

    `foreign` are files whose names the ledgers of these agents do not have. Every byte is read.
    """
    for row, origin in published(connection):
        path = directory.path(row.name)
        where = str(path.relative_to(directory.root))
        users = _users(connection, row.name)
        try:
            problem = file_problem(path, row, origin)
        except FileNotFoundError:
            mend = Mend("drop row", where, row.name)
            report(
                Finding("missing file", where, "the file of a row is gone", _RECOMPUTED, "drop the row", users, mend)
            )
            continue
        what = problem.partition(":")[0]
        if not problem and row.name in foreign:
            what, users = "chain hash", foreign[row.name]
            problem = "its chain hash is not that of the ledger's tokens there"
        if problem:
            mend = Mend("quarantine", where, row.name)
            report(
                Finding(what, where, problem, f"it is refused when loaded; {_RECOMPUTED}", "quarantine it", users, mend)
            )


def file_problem(path: Path, row: FileRow, origin: FileOrigin) -> str:
    """How a file differs from its row, as "reason: problem"; "" if it does not. Raises FileNotFoundError."""
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        return f"unreadable: {error.strerror}"
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size != row.size_bytes:
            return f"size: {size} bytes instead of {row.size_bytes}"
        try:
            data = file.read()
            found, _ = blockfile.parse(data, size)
            chain_hash, window = row.name.chain_hash, row.name.kind is FileKind.WINDOW
            wanted = BlockHeader(
                origin.fingerprint,
                origin.key.namespace,
                chain_hash,
                origin.parent,
                row.first_token,
                row.token_count,
                window,
            )
            blockfile.verify(found, wanted)
        except OSError as error:
            return f"unreadable: {error.strerror}"
        except BlockFileError as error:
            return str(error)
    return "" if blockfile.digest(data) == row.digest else "digest: the bytes are not those that were published"


def check_strays(directory: DataDirectory, connection: sqlite3.Connection, report: Report) -> None:
    """Report files without a row, in quarantine/ too, what is left in staging/, and quarantined rows without a file."""
    rows = {directory.path(row.name) for row, _ in published(connection)}
    for folder in ("blocks", "windows"):
        for path in sorted((directory.root / folder).rglob("*")):
            if path not in rows and not _is_folder(path):
                report(_stray(directory, path, "orphan", "no row knows the file"))
    for path in _entries(directory.staging):
        report(_stray(directory, path, "staging", "a publication that was never finished has left it"))
    kept = quarantine.files(connection)
    known = {path for file in kept for path in directory.quarantine_paths(file)}
    for path in _entries(directory.quarantine):
        if path not in known:
            report(_stray(directory, path, "orphan", "no row knows the file"))
    for file in sorted(kept):
        path, _ = directory.quarantine_paths(file)
        if not path.exists():
            where = str(path.relative_to(directory.root))
            mend = Mend("drop quarantined row", file)
            report(Finding("missing file", where, "a quarantined file is gone", "none", "drop the row", mend=mend))


def check_modes(directory: DataDirectory, report: Report) -> None:
    """Report directories that are not 0700, and files that are not 0600, the data directory itself included."""
    for path in (directory.root, *sorted(directory.root.rglob("*"))):
        try:
            found = path.lstat().st_mode
        except FileNotFoundError:  # SQLite's, which come and go
            continue
        wanted = 0o700 if stat.S_ISDIR(found) else 0o600
        if not stat.S_ISLNK(found) and stat.S_IMODE(found) != wanted:
            where = str(path.relative_to(directory.root))
            problem = f"mode {stat.S_IMODE(found):04o} instead of {wanted:04o}"
            open_to_others = "other users of this machine may read what agents were told"
            consequence = open_to_others if found & 0o077 else "the store may not be able to use it"
            mend = Mend("mode", where, mode=wanted)
            report(Finding("mode", where, problem, consequence, f"set mode {wanted:04o}", mend=mend))


def _users(connection: sqlite3.Connection, name: FileName) -> tuple[str, ...]:
    rows = connection.execute(
        f"SELECT DISTINCT namespace, agent_id, model_id FROM ({ALL_REFS}) JOIN agents USING (uid)"
        " WHERE kind = ? AND chain_hash = ? ORDER BY namespace, agent_id, model_id",
        name,
    )
    return tuple("/".join(row) for row in rows)


def _stray(directory: DataDirectory, path: Path, what: str, problem: str) -> Finding:
    where = str(path.relative_to(directory.root))
    if not is_disposable(path):
        return Finding(what, where, "not a file that the store makes", "takes up disk", "move it away")
    return Finding(what, where, problem, _LEAKED, "remove it", mend=Mend("remove", where))


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
