"""Checks of ledgers, for either engine."""

from collections import defaultdict
from typing import Final, NamedTuple

from agentmem.validation import AgentKey
from cache_service.connection import Connection
from cache_service.damage import LedgerDamaged
from cache_service.files.holding import Range
from cache_service.ledger import segments
from cache_service.ledger.segments import Head
from cache_service.ledger.workflow_records import TORN
from cache_service.offline.findings import Finding, Report
from cache_service.tiers import quotas

USELESS: Final = "NOT EXISTS (SELECT 1 FROM object_refs AS r WHERE r.kind = o.kind AND r.chain_hash = o.chain_hash)"
"""SQL: no state refers to a row `o` of objects."""
_STATE = "x.version, x.head_segment, x.tokens, x.text_bytes, x.turns"
_HOLDERS = (
    f"SELECT uid, namespace, agent_id, model_id, NULL, '', {_STATE} FROM agents AS x UNION ALL"
    f" SELECT uid, namespace, agent_id, model_id, x.id, x.name, {_STATE} FROM snapshots AS x JOIN agents USING (uid)"
)
_WRONG_TURNS = {
    "it has turns of versions to come": "t.version > a.version",
    "some of its turns are another namespace's": "t.namespace != a.namespace",
    "a turn is not in the segment that it names": "t.segment IS NOT NULL AND NOT EXISTS (SELECT 1 FROM segments AS s"
    " WHERE s.id = t.segment AND s.version = t.version AND s.generated_tokens >= 0)",
}
_UNERASED = (
    "SELECT s.id, max(h.tokens) - s.parent_tokens FROM segments AS s LEFT JOIN ("
    "SELECT parent_id AS id, parent_tokens AS tokens FROM segments UNION ALL SELECT head_segment, tokens FROM agents"
    " UNION ALL SELECT head_segment, tokens FROM snapshots) AS h ON h.id = s.id"
    " WHERE NOT EXISTS (SELECT 1 FROM turns AS t WHERE t.segment = s.id)"
    " GROUP BY s.id, s.parent_tokens, s.tokens"
    " HAVING max(h.tokens) IS NULL OR max(h.tokens) < s.parent_tokens + s.tokens ORDER BY s.id DESC"
)


class Holder(NamedTuple):
    """A head's owner: an agent's present state, or a snapshot."""

    uid: str
    key: AgentKey
    snapshot: int | None
    name: str
    version: int
    head: Head

    @property
    def agent(self) -> str:
        return "/".join(self.key)

    @property
    def where(self) -> str:
        return f"agent {self.agent}" if self.snapshot is None else f"snapshot {self.name} of {self.agent}"

    @property
    def range(self) -> Range:
        """Its versions in warm.db."""
        return Range(self.uid, self.version, None if self.snapshot is None else self.version)


def holders(connection: Connection) -> list[Holder]:
    """Return all agents, then all snapshots."""
    rows = connection.execute(_HOLDERS).fetchall()
    return [Holder(row[0], AgentKey(*row[1:4]), row[4], row[5], row[6], Head(*row[7:])) for row in rows]


def agents(connection: Connection) -> dict[str, str]:
    """Return all agents in words, by uid."""
    rows = connection.execute("SELECT uid, namespace, agent_id, model_id FROM agents")
    return {uid: "/".join(key) for uid, *key in rows}


def check(connection: Connection, report: Report) -> None:
    """Report all that commits, forks, cuts and deletions do not leave. Reads all ledgers."""
    damaged = dict.fromkeys(segments.damaged(connection))
    users: defaultdict[int, set[str]] = defaultdict(set)
    present: dict[str, int] = {}
    for holder in holders(connection):
        if holder.snapshot is None:
            present[holder.uid] = holder.version
        elif holder.version > present[holder.uid]:
            report(_finding(holder.where, f"it is of version {holder.version}, which is to come", (holder.agent,)))
        for segment in segments.segments_of(connection, holder.uid) if damaged and holder.snapshot is None else ():
            users[segment].add(holder.agent)
        if problem := head_problem(connection, holder):
            report(_finding(holder.where, problem, (holder.agent,)))
    for number in damaged:
        problem = "it is not what was written: its digest differs"
        report(_finding(f"segment {number}", problem, tuple(sorted(users[number]))))
    named = agents(connection)
    for problem, wrong in _WRONG_TURNS.items():
        statement = f"SELECT DISTINCT a.uid FROM turns AS t JOIN agents AS a ON a.uid = t.uid WHERE {wrong}"
        for (uid,) in connection.execute(statement):
            report(_finding(f"agent {named[uid]}", problem, (named[uid],)))
    for (row,) in connection.execute(f"SELECT id FROM workflow_records WHERE {TORN}"):
        problem = "it does not have the payload and the events that it counts"
        report(_finding(f"table workflow_records, row {row}", problem, None))
    for number, needed in unerased(connection):
        held = "nothing stands on it" if needed is None else f"only {needed} of its tokens are needed"
        consequence = "what a deleted agent or branch said may still be in the database"
        problem = f"{held}, so the rest should have been erased"
        report(Finding("unerased", f"segment {number}", problem, consequence, "erase it", mendable=True))
    _check_sums(connection, report)
    _check_objects(connection, report)


def head_problem(connection: Connection, holder: Holder) -> str:
    """Return how a head differs from its chain, or "", without reading content."""
    try:
        pieces = segments.walk(connection, holder.head, holder.where)
    except LedgerDamaged:
        return "its segments do not follow each other"
    if not pieces:
        return f"segment {holder.head.segment}, on which it stands, is not there"
    if {piece.namespace for piece in pieces} != {holder.key.namespace}:
        return "it stands on segments of another namespace"
    found = pieces[-1].end()
    return "" if found == holder.head else f"it counts {_place(holder.head)}, but its chain has {_place(found)}"


def unerased(connection: Connection) -> list[tuple[int, int | None]]:
    """Return segments whose end nothing needs, newest first, and tokens needed, None: none."""
    return [(int(number), needed) for number, needed in connection.execute(_UNERASED)]


def _check_sums(connection: Connection, report: Report) -> None:
    kept, found = quotas.all_ledger_bytes(connection), quotas.ledger_sums(connection)
    for namespace in sorted(kept.keys() | found.keys()):
        counts = kept.get(namespace, 0), found.get(namespace, 0)
        if counts[0] != counts[1]:
            problem, consequence = f"counts {counts[0]} bytes, not {counts[1]}", "the namespace's quota is kept wrongly"
            where = f"table namespaces, {namespace}"
            report(Finding("usage", where, problem, consequence, "count them", mendable=True))


def _check_objects(connection: Connection, report: Report) -> None:
    statement = f"SELECT chain_hash, namespace, agent_id, model_id FROM objects AS o WHERE present = 1 AND {USELESS}"
    for chain_hash, *key in connection.execute(statement):
        where, whose = f"table objects, {chain_hash.hex()}", ("/".join(key),)
        consequence = "it stays in the object store for nobody, and may hold what a deleted agent said"
        report(
            Finding("object", where, "no state refers to it", consequence, "let it be deleted", whose, mendable=True)
        )


def _finding(where: str, problem: str, agents: tuple[str, ...] | None) -> Finding:
    consequence, what = f"what {', '.join(agents or ()) or 'nobody'} remembers may be wrong from there on", "agent"
    if agents is None:
        consequence, what = "that run of a workflow cannot be resumed or looked at", "run"
    repair = f"delete the {what}, or go on without what is damaged: agentmem store recover copies the rest"
    return Finding("ledger", where, problem, consequence, repair, agents or ())


def _place(head: Head) -> str:
    return f"{head.tokens} tokens, {head.text_bytes} bytes and {head.turns} turns"
