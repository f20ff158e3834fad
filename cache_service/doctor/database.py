"""The first look at store.db: whether it is one of ours, of which version, and whether SQLite can open it."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from agentmem.checkup import Findings, ok, problem, warning
from agentmem.datadir import DATABASE
from agentmem.sizes import byte_size
from cache_service import first_page, lost_ledger, schema
from cache_service.files import DataDirectory
from cache_service.offline.database import lost_recovery, recovery

_AHEAD_SECONDS = 60.0


class Unreadable(Exception):
    """The database is not there, or cannot be opened without writing beside it."""


def looked_at(root: Path, held: bool) -> Findings:
    """What `store.db` is. `held` says that a store is using it. `agentmem store check` reads all of it."""
    name, path = "database", root / DATABASE
    if lost := lost_ledger.by_names(DataDirectory(root)):
        yield problem(name, lost, lost_recovery(path))
        return
    if not path.exists():
        yield ok(name, "none yet; it is made at the first start")
        return
    size = path.stat().st_size
    page = first_page.read(path)
    if page is None and size:
        yield problem(name, f"the header of {path} is damaged: it is no SQLite database any more", recovery(path))
        return
    try:
        schema.refuse_newer(path)
    except schema.SchemaTooNew as error:
        yield problem(name, str(error), "install that agentmem, or choose another --data")
        return
    except schema.ForeignDatabase as error:
        yield problem(name, str(error), "choose another --data")
        return
    try:
        with reading(path, held) as connection:
            if lost := lost_ledger.by_rows(DataDirectory(root), connection):
                yield problem(name, lost, lost_recovery(path))
                return
            (agents,) = connection.execute("SELECT count(*) FROM agents").fetchone()
    except Unreadable as error:
        agents = str(error)
    except sqlite3.OperationalError as error:
        agents = f"it could not be read now ({error})"
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        yield problem(name, f"{path} is damaged ({error})", recovery(path))
        return
    version = page.user_version if page else 0
    counted = f"{agents:,} agent{'' if agents == 1 else 's'}" if isinstance(agents, int) else agents
    newest = len(schema.MIGRATIONS)
    told = f"schema {version}" + ("" if version == newest else f" of {newest}, which the next start brings along")
    yield ok(
        name,
        f"{byte_size(size)}, {told}, {counted}",
        f"`agentmem store check {root}` reads all of it",
        facts={"schema_version": version, "size_bytes": size},
    )
    ahead = path.stat().st_mtime - time.time()
    if ahead > _AHEAD_SECONDS:
        yield warning(
            "clock",
            f"{path} was written {ahead / 60:,.0f} minutes from now: times that are shown are wrong",
            "set this machine's clock (timedatectl, or System Settings)",
            facts={"ahead_seconds": round(ahead)},
        )


@contextmanager
def reading(path: Path, held: bool) -> Iterator[sqlite3.Connection]:
    """A connection that writes nothing, nor beside the database. Raises Unreadable.

    SQLite makes files to read a log that nobody has open; so such a database is not opened.
    """
    wal = path.with_name(f"{path.name}-wal")
    if not path.exists():
        raise Unreadable("it is not there")
    if not held and wal.exists() and wal.stat().st_size:
        raise Unreadable("its store was killed; the next start takes in what its log holds")
    options = "mode=ro" if held else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, timeout=2.0)) as connection:
        yield connection
