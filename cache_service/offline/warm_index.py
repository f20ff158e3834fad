"""warm.db: whether it is of use, says what the ledger says, and counts what it has.

What it says of states that the ledger does not have would keep files for nobody, or files of who was deleted.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from agentmem.kv.blockfile import FileKind, FileName
from cache_service.files import holding, references, warm_database
from cache_service.files.directory import DataDirectory
from cache_service.files.holding import OWN, KVChange
from cache_service.files.references import Dropped
from cache_service.ledger import kv_changes, schema
from cache_service.ledger.database import Database
from cache_service.offline import adoption
from cache_service.offline.database import reading, writing
from cache_service.offline.findings import Finding, Mend, Report
from cache_service.tiers import eviction, quotas

_MISCOUNTED = "until the next start"


def unusable(directory: DataDirectory) -> str:
    """Why warm.db cannot be read, as a predicate, as far as its first page shows it; "" if it can. Raises OSError."""
    path = directory.warm_database
    if not path.exists():
        return "is missing"
    page = schema.first_page(path)
    if page is None:
        return "is no SQLite database any more" if path.stat().st_size else "is empty"
    if page.user_version != warm_database.VERSION:
        return f"is of version {page.user_version}, where this program reads {warm_database.VERSION}"
    return ""


def damage(warm: sqlite3.Connection) -> str:
    """What SQLite finds, as a predicate; "" if nothing. Reads all of it."""
    try:
        problem = str(warm.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        problem = str(error)
    return "" if problem == "ok" else f"is damaged ({' '.join(problem.split())})"


def lost(directory: DataDirectory, problem: str) -> Finding:
    """The finding where warm.db is of no use."""
    consequence = "files of KV cannot be checked before it is made anew, as the next start does"
    repair = "make it anew from the ledgers and the files, which reads all of both"
    mend = Mend(files=partial(rebuild, directory))
    return Finding("warm", directory.warm_database.name, f"it {problem}", consequence, repair, mend=mend)


def rebuild(directory: DataDirectory) -> int:
    """Make warm.db anew of all files that a ledger names; how many. Hold the directory's lock.

    Raises OSError, sqlite3.Error, AgentmemError.
    """
    for suffix in ("-wal", "-shm", ""):
        directory.warm_database.with_name(f"{directory.warm_database.name}{suffix}").unlink(missing_ok=True)
    create(directory)
    with reading(directory.database) as ledger, writing(directory.warm_database) as warm:
        return adoption.adopt(directory, ledger, warm)


def create(directory: DataDirectory) -> None:
    """Make a new warm.db. Raises OSError, sqlite3.Error, AgentmemError."""
    database = Database(directory.warm_database, warm_database.prepare)
    database.open()
    database.close()


def check_states(
    directory: DataDirectory,
    ledger: sqlite3.Connection,
    warm: sqlite3.Connection,
    agents: Mapping[str, str],
    report: Report,
) -> None:
    """Report what warm.db says of states and the ledger does not; `agents` are all agents in words, by uid."""
    versions: dict[str, int] = dict(ledger.execute("SELECT uid, version FROM agents").fetchall())
    snapshots: dict[int, str] = dict(ledger.execute("SELECT id, uid FROM snapshots").fetchall())
    followed, last = holding.followed(warm), kv_changes.last(ledger)
    if followed > last:
        problem = f"it followed change {followed} of states, where the ledger has made {last}: it was another one's"
        consequence, mend = "until the next start nothing is followed", partial(_follow_from, change=last)
        report(Finding("held", "table followed", problem, consequence, "follow from there", mend=Mend(warm=mend)))
    changes = kv_changes.after(ledger, followed)
    if changes:
        problem = f"{len(changes)} changes of states that the ledger has made were not followed"
        consequence = "until the next start KV of what was cut or deleted is on the disk"
        mended = _dropping(directory, partial(holding.follow, changes=changes))
        named = tuple(sorted({agents[change.uid] for change in changes if change.uid in agents}))
        report(Finding("held", "table kv_changes", problem, consequence, "follow them", named, mended))
    held = warm.execute("SELECT uid, snapshot, count(*) FROM held GROUP BY uid, snapshot").fetchall()
    for uid, snapshot, files in held:
        exists = uid in versions if snapshot == OWN else snapshots.get(snapshot) == uid
        if exists or _ends(changes, uid, snapshot):
            continue
        what = f"agent {uid}" if uid not in versions else f"snapshot {snapshot} of {agents[uid]}"
        consequence, mended = "they stay on the disk for nobody", _dropping(directory, partial(_release, uid, snapshot))
        problem = f"{files} files are held for it, and it does not exist"
        report(Finding("held", f"table held, {what}", problem, consequence, "let them go", mend=mended))
    for uid, version in warm.execute("SELECT uid, version FROM published").fetchall():
        if version <= versions.get(uid, -1) or _ends(changes, uid, OWN):
            continue
        at = f"it is at {versions[uid]}" if uid in versions else "it does not exist"
        problem = f"KV of version {version} of it is published, and {at}"
        consequence, mend = "KV of its turns is not kept until it is there", partial(_forget_published, uid=uid)
        where, whose = f"table published, agent {agents.get(uid, uid)}", (agents[uid],) if uid in agents else ()
        report(Finding("held", where, problem, consequence, "forget it", whose, Mend(warm=mend)))


def check_evicted(warm: sqlite3.Connection, agents: Mapping[str, str], report: Report) -> None:
    """Report files that are said to be evicted and are there, and those of agents that are not."""
    for uid, kind, chain_hash in warm.execute(
        "SELECT uid, kind, chain_hash FROM evicted JOIN files USING (kind, chain_hash)"
    ).fetchall():
        where = f"table evicted, {chain_hash.hex()}"
        consequence = "once it is missing for another reason, a turn reports that it was evicted"
        mend = Mend(warm=partial(eviction.forget, uid="", names=[references.named(kind, chain_hash)]))
        whose = (agents[uid],) if uid in agents else ()
        report(Finding("evicted", where, "the file is there", consequence, "forget that it was", whose, mend))
    for (uid,) in warm.execute("SELECT DISTINCT uid FROM evicted").fetchall():
        if uid not in agents:
            where, consequence = f"table evicted, agent {uid}", "turns report that KV was evicted which they never had"
            gone = Mend(warm=partial(_forget_evicted, uid=uid))
            report(Finding("evicted", where, "it does not exist", consequence, "forget it", mend=gone))


def check_sums(warm: sqlite3.Connection, report: Report) -> None:
    """Report sums that are not those of the files."""
    kinds, of_kinds = references.sizes(warm), references.sums(warm)
    consequence = "KV is evicted too early or too late"
    for kind in FileKind:
        report_sum(report, f"usage, kind {kind:d}", kinds.get(kind), of_kinds[kind], consequence)
    spaces, of_spaces = quotas.all_kv_bytes(warm), quotas.kv_sums(warm)
    for each in sorted(spaces.keys() | of_spaces.keys()):
        found = spaces.get(each, 0), of_spaces.get(each, 0)
        report_sum(report, f"kv_bytes, {each}", *found, "the namespace's quota is kept wrongly")


def report_sum(report: Report, where: str, kept: int | None, found: int, consequence: str) -> None:
    """Report a sum that is kept in a table, if it is not what was found."""
    if kept != found:
        problem, consequence = f"counts {kept} bytes, not {found}", f"{consequence}, {_MISCOUNTED}"
        report(Finding("usage", f"table {where}", problem, consequence, "count them", mend=Mend()))


def _ends(changes: Iterable[KVChange], uid: str, snapshot: int) -> bool:
    """Whether one of these changes ends what is held for a state."""
    return any(change.uid == uid and change.snapshot in (None, snapshot) for change in changes)


def _dropping(directory: DataDirectory, drop: Callable[[sqlite3.Connection], Dropped]) -> Mend:
    """Drop rows of warm.db, and then the files that these were of."""
    dropped = Dropped()

    def files() -> None:
        directory.remove(dropped.files)
        directory.remove_quarantined(dropped.quarantined)

    return Mend(warm=lambda warm: dropped.add(drop(warm)), files=files)


def _release(uid: str, snapshot: int, warm: sqlite3.Connection) -> Dropped:
    names = holding.of(warm, uid, snapshot)
    warm.execute("DELETE FROM held WHERE uid = ? AND snapshot = ?", (uid, snapshot))
    dropped: list[FileName] = []
    for name in names:
        dropped += holding.drop_unheld(warm, references.namespace_of(warm, name) or "", [name])[0]
    return Dropped(dropped)


def _follow_from(warm: sqlite3.Connection, change: int) -> None:
    warm.execute("UPDATE followed SET change = ?", (change,))


def _forget_published(warm: sqlite3.Connection, uid: str) -> None:
    warm.execute("DELETE FROM published WHERE uid = ?", (uid,))


def _forget_evicted(warm: sqlite3.Connection, uid: str) -> None:
    warm.execute("DELETE FROM evicted WHERE uid = ?", (uid,))
