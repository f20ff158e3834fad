"""Keys in the database of a cluster: two nodes of real processes, `agentmem keys`, and a network that is cut."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner, Result

from agentmem.channels import connect
from agentmem.v1 import model_pb2, model_pb2_grpc
from benchmarks.proxy import Proxy
from cache_service.cluster import nodes
from gateway.cli.main import main
from gateway.cluster.cli.certificates import authority, issue
from gateway.edge.key_file import changing
from gateway.edge.keys import Shown, new, split
from tests import postgres
from tests.cluster.nodes import Node
from tests.system.stack import free_port

HOST = "127.0.0.1"
LEASE = nodes.LEASE / 10**9
LET_IN, REFUSED, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE
_databases = itertools.count()


@dataclass
class Two:
    """Two nodes, the way of the second to the database, and where that is."""

    a: Node
    b: Node
    proxy: Proxy
    url: str

    def keys(self, *arguments: str) -> Result:
        """`agentmem keys`, with the database in the environment, as nodes have it."""
        environment = {"AGENTMEM_UP_CLUSTER": self.url, "AGENTMEM_UP_CLUSTER_SURVIVES": "nothing"}
        return CliRunner().invoke(main, ["keys", *arguments], env=environment)

    def create(self, *more: str) -> Shown:
        made = self.keys("create", "--namespace", "team", *more)
        assert made.exit_code == 0, made.output
        assert "the cluster's database" in made.stderr
        shown = split(made.stdout.strip())
        assert shown is not None
        return shown

    async def until(self, key: Shown, said: grpc.StatusCode) -> None:
        async with asyncio.timeout(30):
            for node in (self.a, self.b):
                while await asked(node, key) is not said:
                    await asyncio.sleep(0.05)


async def asked(node: Node, key: Shown) -> grpc.StatusCode:
    """Return the status of a node's gRPC door for a key."""
    async with connect(node.doors[1], key=str(key)) as channel:
        try:
            await model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest(), timeout=20)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return LET_IN


@pytest.fixture
async def two(tmp_path: Path, postgres_server: postgres.Server) -> AsyncIterator[Two]:
    certificates = issue(authority(tmp_path / "tls"), tmp_path / "tls", HOST, 30)
    database = f"keys_{next(_databases)}"
    with postgres_server.connect() as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    with ExitStack() as stack:
        proxies = [stack.enter_context(closing(Proxy(postgres_server.root / ".s.PGSQL.5432"))) for _ in range(2)]
        urls = [f"postgresql://agentmem@{HOST}:{proxy.port}/{database}?gssencmode=disable" for proxy in proxies]
        made = []
        for name, url in zip("ab", urls, strict=True):
            own = (f"--node={name}", f"--advertise={HOST}:{free_port()}", f"--cluster-tls={certificates}")
            node = Node(
                (*own, "--cluster-survives=nothing"),
                environment={"AGENTMEM_STORE_CLUSTER": url},
                gateway_flags=(*own, "--cluster-keys"),
            )
            stack.callback(node.destroy)
            node.start()
            made.append(node)
        for node in made:
            await node.ready()
        a, b = made
        yield Two(a, b, proxies[1], urls[0])


@pytest.mark.slow
async def test_a_key_is_made_revoked_and_brought_from_a_file_for_all_nodes(two: Two, tmp_path: Path) -> None:
    key = two.create("--label", "ci")
    await two.until(key, LET_IN)
    for wrong in (Shown(key.id, "s" * len(key.secret)), Shown("0" * 12, key.secret)):
        assert [await asked(node, wrong) for node in (two.a, two.b)] == [REFUSED] * 2
    (listed,) = json.loads(two.keys("list", "--json").stdout)
    assert (listed["id"], listed["namespace"], listed["label"]) == (key.id, "team", "ci")
    assert key.secret not in two.keys("list").stdout
    revoked = two.keys("revoke", key.id)
    assert revoked.exit_code == 0, revoked.output
    await two.until(key, REFUSED)
    again = two.keys("revoke", key.id)
    assert (again.exit_code, "has no key" in again.output) == (1, True)
    assert json.loads(two.keys("list", "--json").stdout) == []
    file = tmp_path / "keys.json"
    made, shown = new("ada", datetime.now(UTC), max_running=2, admin=True)
    with changing(file) as known:
        known[made.id] = made
    for new_ones in (1, 0):
        done = two.keys("import", str(file))
        assert (done.exit_code, f"{new_ones} of 1 keys are new" in done.output) == (0, True), done.output
    await two.until(shown, LET_IN)
    (listed,) = json.loads(two.keys("list", "--json").stdout)
    assert listed == {**made.model_dump(mode="json", exclude={"sha256"}), "expired": False}


@pytest.mark.slow
async def test_a_node_that_is_cut_off_lets_nobody_in_within_its_lease(two: Two) -> None:
    """It does not learn that a key was revoked, and so it may go on for as long as its lease, and no longer."""
    key = two.create()
    await two.until(key, LET_IN)
    with two.proxy.cut():
        assert two.keys("revoke", key.id).exit_code == 0
        began = time.monotonic()
        async with asyncio.timeout(LEASE + 20):
            sent = began
            while (said := await asked(two.b, key)) is LET_IN:
                assert sent - began < LEASE, "its lease was over, and the key revoked, before it was asked"
                await asyncio.sleep(0.05)
                sent = time.monotonic()
        assert said is UNAVAILABLE
        assert await asked(two.a, key) is REFUSED
    await two.until(key, REFUSED)
    other = two.create()
    await two.until(other, LET_IN)
