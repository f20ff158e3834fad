"""Checks of published files, and of everything else in the directory."""

import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from agentmem.kv import blockfile
from agentmem.kv.blockfile import BlockFileError, FileName
from cache_service.files import references
from cache_service.files.directory import FOLDERS, DataDirectory, is_disposable
from cache_service.files.disk import open_regular
from cache_service.files.publication import header_of
from cache_service.files.references import FileRow
from cache_service.offline.findings import Finding, Report

_RECOMPUTED = "a turn that needs it computes its tokens again from the ledger"
_LEAKED = "takes up disk that nobody counts, and may hold what a deleted agent said"


def check_published(
    directory: DataDirectory, warm: sqlite3.Connection, agents: Mapping[str, str], report: Report
) -> list[FileName]:
    """Return files that differ from their rows. Reads every byte. `agents` are in words, by uid."""
    wrong = []
    for each in warm.execute(f"SELECT {references.COLUMNS} FROM files"):
        row = references.described(each)
        path = directory.path(row.name)
        where = str(path.relative_to(directory.root))
        holders = warm.execute("SELECT uid FROM held WHERE kind = ? AND chain_hash = ?", row.name)
        users = tuple(sorted({agents[uid] for (uid,) in holders if uid in agents}))
        try:
            problem = file_problem(path, row)
        except FileNotFoundError:
            problem = "the file of a row is gone"
            report(Finding("missing file", where, problem, _RECOMPUTED, "drop the row", users, mendable=True))
            continue
        if problem:
            what, consequence = problem.partition(":")[0], f"it is refused when loaded; {_RECOMPUTED}"
            report(Finding(what, where, problem, consequence, "delete it", users, mendable=True))
            wrong.append(row.name)
    return wrong


def file_problem(path: Path, row: FileRow) -> str:
    """Return "reason: problem", or "". Raises FileNotFoundError."""
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
            blockfile.verify(found, header_of(row))
        except OSError as error:
            return f"unreadable: {error.strerror}"
        except BlockFileError as error:
            return str(error)
    return "" if blockfile.digest(data) == row.digest else "digest: the bytes are not those that were published"


def check_strays(directory: DataDirectory, warm: sqlite3.Connection, report: Report) -> None:
    for path, what in _strays(directory, warm):
        where, problem = str(path.relative_to(directory.root)), _STRAYS[what]
        if is_disposable(path):
            report(Finding(what, where, problem, _LEAKED, "remove it", mendable=True))
        else:
            report(Finding(what, where, "not a file that the store makes", "takes up disk", "move it away"))


def check_modes(directory: DataDirectory, report: Report) -> None:
    for path, found, wanted in _wrong_modes(directory):
        problem = f"mode {found:04o} instead of {wanted:04o}"
        open_to_others = "other users of this machine may read what agents were told"
        consequence = open_to_others if found & 0o077 else "the store may not be able to use it"
        where, repair = str(path.relative_to(directory.root)), f"set mode {wanted:04o}"
        report(Finding("mode", where, problem, consequence, repair, mendable=True))


def mend_modes(directory: DataDirectory) -> None:
    for path, _, wanted in _wrong_modes(directory):
        with suppress(FileNotFoundError):  # SQLite's WAL, gone since
            path.chmod(wanted)


def mend(directory: DataDirectory, warm: sqlite3.Connection, wrong: Iterable[FileName]) -> None:
    """Delete files that are `wrong`, unknown ones, and rows without files. Rows first."""
    warm.execute("BEGIN IMMEDIATE")
    references.forget(warm, wrong)
    references.forget(warm, [name for name in references.all_names(warm) if not directory.path(name).exists()])
    warm.execute("COMMIT")
    for path, _ in _strays(directory, warm):
        if is_disposable(path):
            path.unlink(missing_ok=True)


_STRAYS = {"orphan": "no row knows the file", "staging": "a publication that was never finished has left it"}


def _strays(directory: DataDirectory, warm: sqlite3.Connection) -> Iterator[tuple[Path, str]]:
    rows = {*map(directory.path, references.all_names(warm))}
    for folder in FOLDERS.values():
        for path in sorted((directory.root / folder).rglob("*")):
            if path not in rows and (path.is_symlink() or not path.is_dir()):
                yield path, "orphan"
    yield from ((path, "staging") for path in sorted(directory.staging.glob("*")))


def _wrong_modes(directory: DataDirectory) -> Iterator[tuple[Path, int, int]]:
    """Yield paths with their actual and correct modes."""
    for path in (directory.root, *sorted(directory.root.rglob("*"))):
        with suppress(FileNotFoundError):  # SQLite's, which come and go
            found = path.lstat().st_mode
            wanted = 0o700 if stat.S_ISDIR(found) else 0o600
            if not stat.S_ISLNK(found) and stat.S_IMODE(found) != wanted:
                yield path, stat.S_IMODE(found), wanted
