"""Nodes that are gone: who may be forgotten, what goes with it, and what becomes of one that comes back."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path

import pytest
from click.testing import CliRunner

from cache_service.cluster import membership, nodes
from cache_service.cluster.offline.commands import main
from cache_service.cluster.postgres.settings import Settings
from cache_service.connection import Connection
from tests.cache_service import kv
from tests.cache_service.cluster.several import Node, node, until


def rows(on: Node, table: str, of: str) -> int:
    statement = f"SELECT count(*) FROM {table} WHERE node = ?"
    return int(on.store.store._database.read_blocking(lambda c: c.execute(statement, (of,)).fetchone())[0])


def expire(connection: Connection, name: str) -> None:
    connection.execute("UPDATE nodes SET expires = expires - ? WHERE node = ?", (2 * nodes.LEASE, name))


def stranger(connection: Connection) -> None:
    """A node that was last heard of decades ago, in the midst of a turn."""
    columns = "node, epoch, directory, address, expires, followed, report"
    connection.execute(f"INSERT INTO nodes ({columns}) VALUES ('z', 1, '', '', 1, 0, '')")
    connection.execute("INSERT INTO claims (namespace, agent_id, model_id, node) VALUES ('n', 'a', 'm', 'z')")


def forgotten(cluster: Settings, name: str) -> str:
    settings = {"AGENTMEM_UP_CLUSTER": cluster.conninfo, "AGENTMEM_UP_CLUSTER_SURVIVES": "nothing"}
    return CliRunner().invoke(main, ["forget", name, f"--schema={cluster.schema}"], env=settings).output


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "BEAT_SECONDS", 0.1)


async def test_only_a_node_that_is_gone_is_forgotten(data: Path, cluster: Settings) -> None:
    """Its row and its claims go; when it returns, its files follow the ledger again before it counts."""
    async with node(data, cluster, "a") as a, node(data, cluster, "b") as b:
        assert "knows no node c" in forgotten(cluster, "c")
        await b.sync(kv.key())
        await until(lambda: rows(a, "claims", "b"))
        assert "node b is there; stop it" in forgotten(cluster, "b")
        assert rows(a, "claims", "b") == 1
        again = b.cut_off()
        said = ""
        while "node b is forgotten" not in said:  # b's own heartbeat may come between
            a.store.store._database.write_blocking(expire, "b")
            said = forgotten(cluster, "b")
        assert (rows(a, "nodes", "b"), rows(a, "claims", "b")) == (0, 0)
        async with asyncio.timeout(30):
            while "b" in await a.sync():
                await asyncio.sleep(0.05)
        of_b = b.membership
        anew, reconcile = list[str](), of_b._reconcile

        def noted() -> Future[None]:
            anew.append("b")
            return reconcile()

        of_b._reconcile = noted
        again()
        async with asyncio.timeout(30):
            while "b" not in await a.sync():
                await asyncio.sleep(0.05)
        await until(lambda: anew == ["b"] and not of_b.problem())


async def test_claims_go_with_a_node_that_nobody_remembers(data: Path, cluster: Settings) -> None:
    async with node(data, cluster, "a") as a:
        a.store.store._database.write_blocking(stranger)
        await until(lambda: (rows(a, "nodes", "z"), rows(a, "claims", "z")) == (0, 0))
