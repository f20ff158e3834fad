"""What is wrong with a cluster's ledgers: `offline.ledgers` on PostgreSQL, and what only a cluster has.

All is read in one consistent state; nodes may serve meanwhile.
"""

from dataclasses import dataclass, replace
from typing import Final

from cache_service.cluster import nodes
from cache_service.connection import Connection
from cache_service.ledger.postgres.settings import Settings
from cache_service.offline import ledgers
from cache_service.offline.cluster.server import opened
from cache_service.offline.findings import Finding, Mend, Report
from cache_service.offline.tree import Tree
from cache_service.tiers import quotas

LATE: Final = 3600
"""Seconds after which a change of KV should have been followed."""
_WITHOUT: Final = (
    "NOT EXISTS (SELECT 1 FROM objects AS o WHERE o.kind = r.kind AND o.chain_hash = r.chain_hash)",
    "NOT EXISTS (SELECT 1 FROM object_refs AS r WHERE r.kind = o.kind AND r.chain_hash = o.chain_hash)",
)


@dataclass(frozen=True)
class Checked:
    """What was found, how many agents there are, and which findings are no more."""

    findings: list[Finding]
    mended: list[Finding]
    agents: int

    @property
    def is_clean(self) -> bool:
        """Nothing is wrong (any more)."""
        return len(self.findings) == len(self.mended)


def check(settings: Settings, repair: bool = False) -> Checked:
    """Check everything; with `repair` count namespaces' bytes anew. Raises CannotCheck."""
    with opened(settings) as postgres:
        findings, agents = postgres.read_blocking(_check)
        mended = [finding for finding in findings if finding.mend] if repair else []
        if mended:
            postgres.write_blocking(recount)
    return Checked(findings, mended, agents)


def recount(connection: Connection) -> None:
    """Count all namespaces' bytes anew, while nobody changes them."""
    for table in ("segments", "turns", "workflow_records", "namespaces"):
        connection.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
    connection.execute("DELETE FROM namespaces")
    connection.executemany(
        "INSERT INTO namespaces (namespace, shard, ledger_bytes) VALUES (?, 0, ?)",
        quotas.ledger_sums(connection).items(),
    )


def _check(connection: Connection) -> tuple[list[Finding], int]:
    findings: list[Finding] = []
    tree = Tree(connection)
    ledgers.check(connection, tree, findings.append)
    # What a node would erase it erases under locks that nobody holds here.
    findings = [replace(finding, mend=None) for finding in findings]
    _check_sums(connection, findings.append)
    _check_objects(connection, findings.append)
    _check_followed(connection, findings.append)
    agents = len({holder.uid for holder in tree.holders})
    return list(dict.fromkeys(findings)), agents


def _check_sums(connection: Connection, report: Report) -> None:
    kept, found = quotas.all_ledger_bytes(connection), quotas.ledger_sums(connection)
    for namespace in sorted(kept.keys() | found.keys()):
        counts = kept.get(namespace, 0), found.get(namespace, 0)
        if counts[0] != counts[1]:
            problem, consequence = f"counts {counts[0]} bytes, not {counts[1]}", "the namespace's quota is kept wrongly"
            where = f"table namespaces, {namespace}"
            report(Finding("usage", where, problem, consequence, "count them", mend=Mend()))


def _check_objects(connection: Connection, report: Report) -> None:
    without, useless = _WITHOUT
    for uid, chain_hash in connection.execute(f"SELECT uid, chain_hash FROM object_refs AS r WHERE {without}"):
        where, problem = f"table object_refs, {uid}, {chain_hash.hex()}", "it refers to an object that is not there"
        consequence = "KV that is taken to be in the object store is computed again"
        report(Finding("object", where, problem, consequence, "the agent's next publication replaces it"))
    statement = f"SELECT chain_hash, namespace, agent_id, model_id FROM objects AS o WHERE present = 1 AND {useless}"
    for chain_hash, *key in connection.execute(statement):
        where, consequence = f"table objects, {chain_hash.hex()}", "it stays in the object store for nobody"
        repair, agents = "a node that drops it lets it be deleted", ("/".join(key),)
        report(Finding("object", where, "no state refers to it", consequence, repair, agents))


def _check_followed(connection: Connection, report: Report) -> None:
    for name, changes in nodes.behind(connection, LATE * 10**9):
        problem = f"{changes} changes of KV that are older than an hour are not followed"
        consequence = "KV of what was cut or deleted is on its disk"
        repair = "look at its log; a node that starts again follows before it serves"
        report(Finding("held", f"node {name}", problem, consequence, repair))
