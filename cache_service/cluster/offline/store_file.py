import sqlite3
from contextlib import closing
from pathlib import Path

from cache_service.offline import database, ledgers
from cache_service.offline.database import reading
from cache_service.offline.findings import CannotCheck, Finding


class Refused(CannotCheck):
    """The cluster has some of it already, or it is damaged."""


def refuse_faults(path: Path, what: str, check: str) -> None:
    """Raise Refused unless all ledgers hold together; `check` is a command that tells more."""
    findings: list[Finding] = []
    try:
        with reading(path, is_ours=True) as store:
            if database.check(store, path, findings.append):
                ledgers.check(store, findings.append)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        raise Refused(f"{what} is damaged ({error}); nothing was moved") from error
    faults = [finding for finding in findings if finding.what not in ("usage", "object")]  # these are not moved
    if faults:
        first = f"{faults[0].where}: {faults[0].problem}"
        raise Refused(f"{what} has {len(faults)} faults ({first}); nothing was moved; run: {check}")


def into_one_file(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as store:
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
