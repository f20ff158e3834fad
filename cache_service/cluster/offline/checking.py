"""Checks of a cluster whose nodes may serve, in one state."""

from dataclasses import replace
from typing import Final

from cache_service.cluster import nodes
from cache_service.cluster.offline.server import opened
from cache_service.cluster.postgres.settings import Settings
from cache_service.connection import Connection
from cache_service.offline import ledgers
from cache_service.offline.findings import Checked, Finding, Report
from cache_service.tiers import quotas

LATE: Final = 3600
_WITHOUT: Final = "NOT EXISTS (SELECT 1 FROM objects AS o WHERE o.kind = r.kind AND o.chain_hash = r.chain_hash)"


def check(settings: Settings, repair: bool = False) -> Checked:
    """Check everything; with `repair` count namespaces' bytes again. Raises CannotCheck."""
    with opened(settings) as postgres:
        findings, agents = postgres.read_blocking(_check)
        mended = [finding for finding in findings if finding.mendable] if repair else []
        if mended:
            postgres.write_blocking(recount)
    return Checked(findings, mended, agents)


def recount(connection: Connection) -> None:
    """Count all namespaces' bytes again, while nobody changes them."""
    for table in ("segments", "turns", "workflow_records", "namespaces"):
        connection.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
    connection.execute("DELETE FROM namespaces")
    connection.executemany(
        "INSERT INTO namespaces (namespace, shard, ledger_bytes) VALUES (?, 0, ?)",
        quotas.ledger_sums(connection).items(),
    )


def _check(connection: Connection) -> tuple[list[Finding], int]:
    findings: list[Finding] = []
    ledgers.check(connection, findings.append)
    # Nodes erase under locks that nobody holds here.
    findings = [replace(finding, mendable=finding.what == "usage") for finding in findings]
    for uid, chain_hash in connection.execute(f"SELECT uid, chain_hash FROM object_refs AS r WHERE {_WITHOUT}"):
        where, problem = f"table object_refs, {uid}, {chain_hash.hex()}", "it refers to an object that is not there"
        consequence = "KV that is taken to be in the object store is computed again"
        findings.append(Finding("object", where, problem, consequence, "the agent's next publication replaces it"))
    _check_followed(connection, findings.append)
    return list(dict.fromkeys(findings)), len(ledgers.agents(connection))


def _check_followed(connection: Connection, report: Report) -> None:
    for name, changes in nodes.behind(connection, LATE * 10**9):
        problem = f"{changes} changes of KV that are older than an hour are not followed"
        consequence = "KV of what was cut or deleted is on its disk"
        repair = "look at its log; a node that starts again follows before it serves"
        report(Finding("held", f"node {name}", problem, consequence, repair))
