"""All checks of a data directory, and mending."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from agentmem.kv.blockfile import FileName
from cache_service.files import warm_database
from cache_service.files.directory import DataDirectory
from cache_service.ledger import schema, segments
from cache_service.offline import database, files, ledgers
from cache_service.offline.database import alone, reading, writing
from cache_service.offline.findings import CannotCheck, Checked, Finding
from cache_service.tiers import quotas


def check(root: Path, repair: bool = False) -> Checked:
    """Check everything, and mend if `repair`, without which nothing is written. No store may use the directory.

    Raises CannotCheck if it is no data directory, in use, a newer program's, or without its store.db. Where store.db is
    damaged, nothing is mended: good files would look like orphans.
    """
    directory = database.find(root)
    with alone(directory):
        findings: list[Finding] = []
        wrong: list[FileName] = []
        files.check_modes(directory, findings.append)
        agents = published = 0
        whole, warm_is_whole = False, False
        try:
            with reading(directory.database) as ledger:
                whole = database.check(ledger, directory.database, findings.append)
                if whole and (lost := database.lost_by_id(directory, ledger)):
                    raise CannotCheck(f"{lost}. {database.lost_recovery(directory.database)}")
                agents = ledger.execute("SELECT count(*) FROM agents").fetchone()[0]
                ledgers.check(ledger, findings.append)
                named = ledgers.agents(ledger)
            unreadable = unusable_warm(directory)
            if not unreadable:
                with reading(directory.warm_database) as warm:
                    unreadable = "".join(f"is damaged ({each})" for each in database.damages(warm, most=1))
            if unreadable:
                consequence = "files of KV cannot be checked"
                where, advice = directory.warm_database.name, "start the store, which makes it anew"
                findings.append(Finding("warm", where, f"it {unreadable}", consequence, advice))
            else:
                warm_is_whole = True
                with reading(directory.warm_database) as warm:
                    published = warm.execute("SELECT count(*) FROM files").fetchone()[0]
                    wrong = files.check_published(directory, warm, named, findings.append)
                    files.check_strays(directory, warm, findings.append)
        except sqlite3.OperationalError as error:
            raise CannotCheck(f"cannot read {directory.database}: {error}") from error
        except sqlite3.DatabaseError as error:
            whole = False
            if not any(finding.what == "database" for finding in findings):
                raise CannotCheck(f"cannot read {directory.database}: {error}") from error
        except OSError as error:
            raise CannotCheck(f"cannot read {error.filename or directory.root}: {error.strerror}") from error
        findings, mended = list(dict.fromkeys(findings)), list[Finding]()
        if repair and whole and (mended := [finding for finding in findings if finding.mendable]):
            try:
                _mend(directory, warm_is_whole, wrong)
            except (OSError, sqlite3.OperationalError) as error:
                raise CannotCheck(f"cannot mend {directory.root}: {error}; check it without --repair") from error
    return Checked(findings, mended, agents, published)


def _mend(directory: DataDirectory, warm_is_whole: bool, wrong: Sequence[FileName]) -> None:
    """Mend modes first, to read files. Hold the directory's lock."""
    files.mend_modes(directory)
    with writing(directory.database) as ledger:
        segments.drop_unused(ledger, [number for number, _ in ledgers.unerased(ledger)])
        ledger.execute(f"DELETE FROM objects AS o WHERE {ledgers.USELESS}")
        quotas.recount_ledgers(ledger)
    if warm_is_whole:
        with closing(sqlite3.connect(directory.warm_database, isolation_level=None)) as warm:
            files.mend(directory, warm, wrong)


def unusable_warm(directory: DataDirectory) -> str:
    """Return why warm.db cannot be read, by its first page, or ""."""
    path = directory.warm_database
    if not path.exists():
        return "is missing"
    page = schema.first_page(path)
    if page is None:
        return "is no SQLite database any more" if path.stat().st_size else "is empty"
    if page.user_version != warm_database.VERSION:
        return f"is of version {page.user_version}, where this program reads {warm_database.VERSION}"
    return ""
