"""Both databases, for commands."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from agentmem.errors import AgentmemError
from cache_service.cluster.postgres.database import Postgres
from cache_service.cluster.postgres.failures import OutcomeUnknown
from cache_service.cluster.postgres.settings import Settings, UnsafeServer
from cache_service.ledger.database import DURABLE
from cache_service.ledger.schema import ForeignDatabase, SchemaTooNew
from cache_service.offline import database, ledgers
from cache_service.offline.database import reading
from cache_service.offline.findings import CannotCheck, Finding


@contextmanager
def opened(settings: Settings, *, migrates: bool = False) -> Iterator[Postgres]:
    """Open the ledger; `migrates` makes its tables first. All failures become CannotCheck."""
    postgres = Postgres(settings)
    try:
        if migrates:
            postgres.open()
        elif not postgres.open_existing():
            raise CannotCheck("no cluster's ledger is in this database; name the one that the nodes have as --cluster")
        yield postgres
    except OutcomeUnknown as error:
        raise CannotCheck(f"it is not known whether it was done ({error.message}); run this again") from error
    except AgentmemError as error:
        raise CannotCheck(error.message) from error
    except (UnsafeServer, SchemaTooNew, ForeignDatabase) as error:
        raise CannotCheck(f"--cluster: {error}") from error
    finally:
        postgres.close()


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
        for pragma in DURABLE:
            store.execute(f"PRAGMA {pragma}")
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
