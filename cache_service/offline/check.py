"""All checks of a data directory, in the order in which one can rely on another."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from agentmem.identity import FileKind, FileName
from cache_service.files import quarantine, references
from cache_service.files.directory import DataDirectory
from cache_service.offline import chains, database, files, ledgers
from cache_service.offline.findings import CannotCheck, Finding, LedgerLost, Mend, Report
from cache_service.offline.opening import alone, find, reading
from cache_service.offline.repair import mend
from cache_service.tiers import quotas
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
        directory = find(root)
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
            mended = mend(directory, findings) if repair and whole else []
        except (OSError, sqlite3.OperationalError) as error:
            raise CannotCheck(f"cannot mend {directory.root}: {error}; check it without --repair") from error
    return Checked(findings, mended, *counts)


def _counts(connection: sqlite3.Connection) -> tuple[int, int, int]:
    agents, published = connection.execute("SELECT (SELECT count(*) FROM agents), count(*) FROM files").fetchone()
    return agents, published, len(quarantine.files(connection))


def _check_counters(connection: sqlite3.Connection, report: Report) -> None:
    """Report sums that are not those of the files, and files that are said to be evicted and are there."""
    counted = references.sizes(connection)
    for kind in FileKind:
        (size,) = connection.execute(
            "SELECT coalesce(sum(size_bytes), 0) FROM files WHERE kind = ?", (kind,)
        ).fetchone()
        if counted.get(kind) != size:
            report(
                Finding(
                    "usage",
                    f"table usage, kind {kind:d}",
                    f"counts {counted.get(kind)} bytes of files that have {size}",
                    "KV is evicted too early or too late, until the store is started again",
                    "count them",
                    mend=Mend("recount"),
                )
            )
    _check_namespaces(connection, report)
    evicted = connection.execute(
        "SELECT kind, chain_hash, a.namespace, a.agent_id, a.model_id FROM evicted JOIN files USING (kind, chain_hash)"
        " JOIN agents AS a USING (uid)"
    )
    for kind, chain_hash, *key in evicted:
        report(
            Finding(
                "evicted",
                f"table evicted, {chain_hash.hex()}",
                "the file is there",
                "once it is missing for another reason, a turn reports that it was evicted",
                "forget that it was",
                ("/".join(key),),
                Mend("forget evicted", name=FileName(FileKind(kind), chain_hash)),
            )
        )


def _check_namespaces(connection: sqlite3.Connection, report: Report) -> None:
    counted, sums = quotas.of_all(connection), quotas.sums(connection)
    for namespace in sorted(counted.keys() | sums.keys()):
        kept, found = (each.get(namespace, Usage(0, 0)) for each in (counted, sums))
        if kept != found:
            report(
                Finding(
                    "usage",
                    f"table namespaces, {namespace}",
                    f"counts {kept.kv} bytes of KV and {kept.ledger} of ledgers, not {found.kv} and {found.ledger}",
                    "the namespace's quota is kept wrongly, until the store is started again",
                    "count them",
                    mend=Mend("recount"),
                )
            )
