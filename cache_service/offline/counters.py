"""What is counted or remembered besides: bytes by kind, and the names of files that were evicted."""

import sqlite3

from cache_service import references, usage
from cache_service.files import FileName, Kind
from cache_service.offline.findings import Finding, Mend, Report
from cache_service.usage import Usage


def check(connection: sqlite3.Connection, report: Report) -> None:
    """Report sums that are not those of the files, and files that are said to be evicted and are there."""
    counted = references.sizes(connection)
    for kind in Kind:
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
                "once it is missing for another reason, a turn is told that it was evicted",
                "forget that it was",
                ("/".join(key),),
                Mend("forget evicted", name=FileName(Kind(kind), chain_hash)),
            )
        )


def _check_namespaces(connection: sqlite3.Connection, report: Report) -> None:
    counted, sums = usage.of_all(connection), usage.sums(connection)
    for namespace in sorted(counted.keys() | sums.keys()):
        told, found = (each.get(namespace, Usage(0, 0)) for each in (counted, sums))
        if told != found:
            report(
                Finding(
                    "usage",
                    f"table namespaces, {namespace}",
                    f"counts {told.kv} bytes of KV and {told.ledger} of ledgers, not {found.kv} and {found.ledger}",
                    "the namespace's quota is kept wrongly, until the store is started again",
                    "count them",
                    mend=Mend("recount"),
                )
            )
