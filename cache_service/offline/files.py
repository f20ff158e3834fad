"""The files: published ones against their rows, and whatever else lies in the directory."""

import os
import sqlite3
import stat
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

from agentmem.kv import blockfile
from agentmem.kv.blockfile import BlockFileError, FileName
from cache_service.files import holding, references
from cache_service.files.directory import DataDirectory, is_disposable
from cache_service.files.disk import open_regular
from cache_service.files.publication import header_of
from cache_service.files.references import FileOrigin, FileRow
from cache_service.offline.findings import Finding, Mend, Report

_RECOMPUTED = "a turn that needs it computes its tokens again from the ledger"
_LEAKED = "takes up disk that nobody counts, and may hold what a deleted agent said"


def check_published(
    directory: DataDirectory,
    warm: sqlite3.Connection,
    agents: Mapping[str, str],
    foreign: Mapping[FileName, tuple[str, ...]],
    report: Report,
) -> None:
    """Report every published file that is gone or not what its row says, and those in `foreign`.

    `agents` are all agents in words, by uid; `foreign` are files whose names the ledgers of these agents do not have.
    Every byte is read.
    """
    for each in warm.execute(f"SELECT {references.COLUMNS} FROM files"):
        row, origin = references.described(each)
        path = directory.path(row.name)
        where = str(path.relative_to(directory.root))
        users = tuple(sorted({agents[uid] for uid, _ in holding.holders(warm, row.name) if uid in agents}))
        try:
            problem = file_problem(path, row, origin)
        except FileNotFoundError:
            problem, mend = "the file of a row is gone", Mend(warm=partial(references.forget, names=[row.name]))
            report(Finding("missing file", where, problem, _RECOMPUTED, "drop the row", users, mend))
            continue
        what = problem.partition(":")[0]
        if not problem and row.name in foreign:
            what, users = "chain hash", foreign[row.name]
            problem = "its chain hash is not that of the ledger's tokens there"
        if problem:
            consequence, mend = f"it is refused when loaded; {_RECOMPUTED}", _quarantining(directory, row.name, what)
            report(Finding(what, where, problem, consequence, "quarantine it", users, mend))


def _quarantining(directory: DataDirectory, name: FileName, reason: str) -> Mend:
    kept, done = directory.new_quarantine_name(name), []

    def rows(warm: sqlite3.Connection) -> None:
        if references.quarantine(warm, references.namespace_of(warm, name) or "", name, kept):
            done.append(name)

    def file() -> None:
        if done:  # or another mend has let the file go
            directory.set_aside(name, kept, reason)

    return Mend(warm=rows, files=file)


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
            blockfile.verify(found, header_of(row, origin))
        except OSError as error:
            return f"unreadable: {error.strerror}"
        except BlockFileError as error:
            return str(error)
    return "" if blockfile.digest(data) == row.digest else "digest: the bytes are not those that were published"


def check_strays(directory: DataDirectory, warm: sqlite3.Connection, report: Report) -> None:
    """Report files without a row, in quarantine/ too, what is left in staging/, and quarantined rows without a file."""
    rows = {*map(directory.path, references.all_names(warm))}
    for folder in ("blocks", "windows"):
        for path in sorted((directory.root / folder).rglob("*")):
            if path not in rows and (path.is_symlink() or not path.is_dir()):
                report(_stray(directory, path, "orphan", "no row knows the file"))
    for path in sorted(directory.staging.glob("*")):
        report(_stray(directory, path, "staging", "a publication that was never finished has left it"))
    kept = references.quarantined(warm)
    for path in sorted({*directory.quarantine.glob("*")} - {*chain(*map(directory.quarantine_paths, kept))}):
        report(_stray(directory, path, "orphan", "no row knows the file"))
    for file in sorted(kept):
        if not directory.quarantine_paths(file)[0].exists():
            where = f"{directory.quarantine.name}/{file}"
            mend = Mend(warm=partial(references.forget_quarantined, files=[file]))
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
            mend = Mend(mode=partial(_set_mode, path, wanted))
            report(Finding("mode", where, problem, consequence, f"set mode {wanted:04o}", mend=mend))


def _set_mode(path: Path, mode: int) -> None:
    with suppress(FileNotFoundError):  # SQLite's WAL, gone since
        path.chmod(mode)


def _stray(directory: DataDirectory, path: Path, what: str, problem: str) -> Finding:
    where = str(path.relative_to(directory.root))
    if not is_disposable(path):
        return Finding(what, where, "not a file that the store makes", "takes up disk", "move it away")
    return Finding(what, where, problem, _LEAKED, "remove it", mend=Mend(files=partial(path.unlink, missing_ok=True)))
