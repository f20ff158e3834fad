"""All checks of a data directory, in the order in which one can rely on another; and mending what they found.

No ledger is ever changed by that: of segments only what no head stands on is erased. A row goes before its file moves,
as everywhere in the store: a crash in between leaves an orphan, which the next check or start removes.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentmem.identity import FileKind
from cache_service.files import references
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import sync_directory
from cache_service.offline import chains, database, files, ledgers
from cache_service.offline.database import alone, reading, writing
from cache_service.offline.findings import CannotCheck, Finding, LedgerLost, Mend, Report
from cache_service.tiers import eviction, quotas
from cache_service.tiers.quotas import Usage


@dataclass(frozen=True)
class Checked:
    """What a check found, and what was in the directory. `mended` are the findings that are no more."""

    findings: list[Finding]
    mended: list[Finding]
    agents: int
    published: int
    quarantined: int

    @property
    def is_clean(self) -> bool:
        """Nothing is wrong (any more)."""
        return len(self.findings) == len(self.mended)


def check(root: Path, repair: bool = False) -> Checked:
    """Check everything, and mend what can be mended. No store may use the directory meanwhile.

    Raises CannotCheck if it is no data directory, a store's that runs, or a newer program's. A damaged database is a
    finding: ledgers are then checked as far as they can be read, and nothing is mended, since rows that cannot be read
    would make good files look like orphans. So is one that is lost. Nothing is written but by a repair.
    """
    try:
        directory = database.find(root)
    except LedgerLost as error:
        directory = DataDirectory(root)
        with alone(directory):
            return Checked([database.lost(str(error), directory.database)], [], 0, 0, 0)
    with alone(directory):
        findings: list[Finding] = []
        files.check_modes(directory, findings.append)
        counts = (0, 0, 0)
        try:
            with reading(directory.database) as connection:
                whole = database.check(connection, directory.database, findings.append)
                if whole and (lost := database.lost_by_rows(directory, connection)):
                    return Checked([*findings, database.lost(lost, directory.database)], [], 0, 0, 0)
                ledgers.check(connection, findings.append)
                foreign = chains.foreign(connection, findings.append)
                files.check_published(directory, connection, foreign, findings.append)
                _check_counters(connection, findings.append)
                files.check_strays(directory, connection, findings.append)
                counts = _counts(connection)
        except sqlite3.OperationalError as error:
            raise CannotCheck(f"cannot read {directory.database}: {error}") from error
        except sqlite3.DatabaseError as error:
            whole = False
            if not any(finding.what == "database" for finding in findings):
                raise CannotCheck(f"cannot read {directory.database}: {error}") from error
        except OSError as error:
            raise CannotCheck(f"cannot read {error.filename or directory.root}: {error.strerror}") from error
        findings = list(dict.fromkeys(findings))
        try:
            mended = _mend(directory, findings) if repair and whole else []
        except (OSError, sqlite3.OperationalError) as error:
            raise CannotCheck(f"cannot mend {directory.root}: {error}; check it without --repair") from error
    return Checked(findings, mended, *counts)


def _mend(directory: DataDirectory, findings: Sequence[Finding]) -> list[Finding]:
    """Mend all that can be mended; the findings that are no more. Hold the directory's lock.

    Raises OSError, sqlite3.Error: run it again when the cause is gone.
    Modes come first: a file that its owner may not read cannot be moved aside with what is in it known.
    """
    mended = [finding for finding in findings if finding.mend]
    mends = [finding.mend for finding in mended if finding.mend]
    for each in mends:
        each.mode()
    with writing(directory.database) as connection:
        for each in mends:
            each.rows(connection)
        references.recount(connection)
        quotas.recount(connection)
    directory.quarantine.mkdir(mode=0o700, exist_ok=True)
    for each in mends:
        each.files()
    sync_directory(directory.quarantine)
    return mended


def _counts(connection: sqlite3.Connection) -> tuple[int, int, int]:
    agents, published = connection.execute("SELECT (SELECT count(*) FROM agents), count(*) FROM files").fetchone()
    return agents, published, len(references.quarantined(connection))


def _check_counters(connection: sqlite3.Connection, report: Report) -> None:
    """Report sums that are not those of the files, and files that are said to be evicted and are there."""
    kinds, of_kinds = references.sizes(connection), references.sums(connection)
    spaces, of_spaces = quotas.of_all(connection), quotas.sums(connection)
    counters = [
        (f"usage, kind {kind:d}", kinds.get(kind), of_kinds[kind], "KV is evicted too early or too late")
        for kind in FileKind
    ] + [
        (f"namespaces, {each}, {what}", kept, found, "the namespace's quota is kept wrongly")
        for each in sorted(spaces.keys() | of_spaces.keys())
        for what, kept, found in zip(Usage._fields, spaces.get(each, (0, 0)), of_spaces.get(each, (0, 0)), strict=True)
    ]
    for where, kept, found, consequence in counters:
        if kept != found:
            problem, consequence = f"counts {kept} bytes, not {found}", f"{consequence}, until the next start"
            report(Finding("usage", f"table {where}", problem, consequence, "count them", mend=Mend()))
    evicted = connection.execute(
        "SELECT kind, chain_hash, a.namespace, a.agent_id, a.model_id FROM evicted JOIN files USING (kind, chain_hash)"
        " JOIN agents AS a USING (uid)"
    )
    for kind, chain_hash, *key in evicted:
        where = f"table evicted, {chain_hash.hex()}"
        consequence = "once it is missing for another reason, a turn reports that it was evicted"
        mend = Mend(rows=partial(eviction.forget, uid="", names=[references.named(kind, chain_hash)]))
        agents = ("/".join(key),)
        report(Finding("evicted", where, "the file is there", consequence, "forget that it was", agents, mend))
