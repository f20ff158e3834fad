"""All checks of a data directory, in the order in which one can rely on another; and mending what they found.

No ledger is ever changed by that: of segments only what no head stands on is erased. A row goes before its file moves,
as everywhere in the store: a crash in between leaves an orphan, which the next check or start removes.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cache_service.files import references
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import sync_directory
from cache_service.offline import chains, database, files, ledgers, tree, warm_index
from cache_service.offline.database import alone, reading, writing
from cache_service.offline.findings import CannotCheck, Finding, LedgerLost, Mend, Report
from cache_service.tiers import quotas


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

    Raises CannotCheck if it is no data directory, a store's that runs, or a newer program's. A damaged store.db is a
    finding: ledgers are then checked as far as they can be read, and nothing is mended, since rows that cannot be read
    would make good files look like orphans. So is one that is lost. Without warm.db no file can be checked before it is
    made anew. Nothing is written but by a repair.
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
            with reading(directory.database) as ledger:
                whole = database.check(ledger, directory.database, findings.append)
                if whole and (lost := database.lost_by_rows(directory, ledger)):
                    return Checked([*findings, database.lost(lost, directory.database)], [], 0, 0, 0)
                counts = (ledger.execute("SELECT count(*) FROM agents").fetchone()[0], 0, 0)
                ledgers.check(ledger, tree.Tree(ledger), findings.append)
                _check_objects(ledger, findings.append)
                _check_sums(ledger, findings.append)
                problem = warm_index.unusable(directory)
                if not problem:
                    with reading(directory.warm_database) as warm:
                        if not (problem := warm_index.damage(warm)):
                            _check_files(directory, ledger, warm, findings.append)
                            counts = (counts[0], *_counts(warm))
                if problem:
                    findings.append(warm_index.lost(directory, problem))
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
    with writing(directory.database) as ledger:
        for each in mends:
            each.ledger(ledger)
        quotas.recount_ledgers(ledger)
    if not any(finding.what == "warm" for finding in findings):
        with writing(directory.warm_database) as warm:
            for each in mends:
                each.warm(warm)
            references.recount(warm)
            quotas.recount_kv(warm)
    directory.quarantine.mkdir(mode=0o700, exist_ok=True)
    for each in mends:
        each.files()
    sync_directory(directory.quarantine)
    return mended


def _check_files(
    directory: DataDirectory, ledger: sqlite3.Connection, warm: sqlite3.Connection, report: Report
) -> None:
    """Report what is wrong with files, and with what warm.db says of them."""
    agents = tree.agents(ledger)
    warm_index.check_states(directory, ledger, warm, agents, report)
    foreign = chains.foreign(ledger, warm, report)
    files.check_published(directory, warm, agents, foreign, report)
    warm_index.check_evicted(warm, agents, report)
    warm_index.check_sums(warm, report)
    files.check_strays(directory, warm, report)


def _counts(warm: sqlite3.Connection) -> tuple[int, int]:
    (published,) = warm.execute("SELECT count(*) FROM files").fetchone()
    return published, len(references.quarantined(warm))


def _check_sums(ledger: sqlite3.Connection, report: Report) -> None:
    """Report sums that are not those of the ledgers."""
    spaces, of_spaces = quotas.all_ledger_bytes(ledger), quotas.ledger_sums(ledger)
    for each in sorted(spaces.keys() | of_spaces.keys()):
        found = spaces.get(each, 0), of_spaces.get(each, 0)
        warm_index.report_sum(report, f"namespaces, {each}", *found, "the namespace's quota is kept wrongly")


_USELESS = "NOT EXISTS (SELECT 1 FROM object_refs AS r WHERE r.kind = o.kind AND r.chain_hash = o.chain_hash)"


def _check_objects(ledger: sqlite3.Connection, report: Report) -> None:
    """Report objects that no state refers to. They go when the store has its object store again."""
    for kind, chain_hash, *key in ledger.execute(
        f"SELECT kind, chain_hash, namespace, agent_id, model_id FROM objects AS o WHERE {_USELESS}"
    ).fetchall():
        where, agents = f"table objects, {chain_hash.hex()}", ("/".join(key),)
        consequence = "it stays in the object store for nobody, and may hold what a deleted agent said"
        mend = Mend(ledger=partial(_let_go, kind=kind, chain_hash=chain_hash))
        report(Finding("object", where, "no state refers to it", consequence, "let it be deleted", agents, mend))


def _let_go(ledger: sqlite3.Connection, kind: int, chain_hash: bytes) -> None:
    ledger.execute("DELETE FROM objects WHERE kind = ? AND chain_hash = ?", (kind, chain_hash))
