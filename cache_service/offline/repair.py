"""Mending what a check found. No ledger is ever changed by it: of segments only what no head stands on is erased.

A row goes before its file moves, as everywhere in the store: a crash in between leaves an orphan, which the next check
or start removes.
"""

import json
import time
from collections.abc import Sequence
from contextlib import suppress

from cache_service.files import quarantine, references
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import sync_directory, write_private
from cache_service.ledger import segments
from cache_service.offline.findings import Finding, Mend
from cache_service.offline.opening import writing
from cache_service.tiers import quotas


def mend(directory: DataDirectory, findings: Sequence[Finding]) -> list[Finding]:
    """Mend all that can be mended; the findings that are no more. Hold the directory's lock.

    Raises OSError, sqlite3.Error: run it again when the cause is gone.
    Modes come first: a file that its owner may not read cannot be moved aside with what is in it known.
    """
    for finding in findings:
        if finding.mend and finding.mend.how == "mode":
            with suppress(FileNotFoundError):  # SQLite's WAL, gone since
                (directory.root / finding.mend.path).chmod(finding.mend.mode)
    moves = _mend_rows(directory, findings)
    for folder in (directory.quarantine,) if moves else ():
        folder.mkdir(mode=0o700, exist_ok=True)
    for finding, kept in moves:
        _set_aside(directory, finding, kept)
    for finding in findings:
        if finding.mend and finding.mend.how == "remove":
            (directory.root / finding.mend.path).unlink(missing_ok=True)
    if moves:
        sync_directory(directory.quarantine)
    return [finding for finding in findings if finding.mend]


def _mend_rows(directory: DataDirectory, findings: Sequence[Finding]) -> list[tuple[Finding, str]]:
    """Put the database right; the findings whose files are to be moved, and their new names."""
    moves = []
    with writing(directory.database) as connection:
        for finding in findings:
            how, path, name, _, segment, tokens = finding.mend or Mend("")
            if how == "drop quarantined row":
                connection.execute("DELETE FROM quarantined WHERE file = ?", (path,))
            elif how == "erase" and tokens is None:
                connection.execute("DELETE FROM segments WHERE id = ?", (segment,))
            elif how == "erase" and tokens is not None:
                segments.shorten(connection, segment, tokens)
            elif how == "forget evicted" and name:
                connection.execute("DELETE FROM evicted WHERE kind = ? AND chain_hash = ?", name)
            elif how == "drop row" and name:
                references.forget(connection, [name])
            elif how == "quarantine" and name:
                kept = directory.new_quarantine_name(name)
                quarantine.add(connection, references.namespace_of(connection, name) or "", name, kept)
                moves.append((finding, kept))
        references.recount(connection)
        quotas.recount(connection)
    return moves


def _set_aside(directory: DataDirectory, finding: Finding, kept: str) -> None:
    assert finding.mend is not None
    assert finding.mend.name is not None
    path = directory.path(finding.mend.name)
    target, note_path = directory.quarantine_paths(kept)
    size = path.lstat().st_size
    path.replace(target)
    note = {
        "reason": finding.what,
        "time": time.time(),
        "size_bytes": size,
        "kind": finding.mend.name.kind.name.lower(),
    }
    write_private(note_path, json.dumps(note).encode())
