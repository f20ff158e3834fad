"""Keys in the database of a cluster: two nodes of real processes, `agentmem keys`, and a network that is cut."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
        """A key of the namespace team."""
        made = self.keys("create", "--namespace", "team", *more)
        assert made.exit_code == 0, made.output
        assert "the cluster's database" in made.stderr
        shown = split(made.stdout.strip())
        assert shown is not None
        return shown

    async def until(self, key: Shown, said: grpc.StatusCode) -> None:
        """Wait until both nodes say that to who shows a key."""
        async with asyncio.timeout(30):
            for node in (self.a, self.b):
                while await asked(node, key) is not said:
                    await asyncio.sleep(0.05)


async def asked(node: Node, key: Shown) -> grpc.StatusCode:
    """What the gRPC door of a node says to who shows a key."""
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
async def test_a_key_is_made_and_revoked_for_all_nodes(two: Two) -> None:
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


@pytest.mark.slow
async def test_a_key_expires_on_all_nodes(two: Two) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=5)
    key = two.create("--expires", soon.isoformat())
    await two.until(key, LET_IN)
    await two.until(key, REFUSED)
    assert datetime.now(UTC) >= soon
    assert json.loads(two.keys("list", "--json").stdout)[0]["expired"]


@pytest.mark.slow
async def test_a_files_keys_are_brought_in(two: Two, tmp_path: Path) -> None:
    now, file = datetime.now(UTC), tmp_path / "keys.json"
    made = [new(name, now, label=name, max_running=2, admin=name == "ada") for name in ("ada", "bob")]
    with changing(file) as known:
        known.update({key.id: key for key, _ in made})
    text = file.read_text()
    for new_ones in (2, 0):
        done = two.keys("import", str(file))
        assert (done.exit_code, f"{new_ones} of 2 keys are new" in done.output) == (0, True), done.output
    assert file.read_text() == text
    for key, shown in made:
        await two.until(shown, LET_IN)
        (listed,) = [each for each in json.loads(two.keys("list", "--json").stdout) if each["id"] == key.id]
        assert listed == {**key.model_dump(mode="json", exclude={"sha256"}), "expired": False}
    taken = made[0][0].model_copy(update={"namespace": "eve"})
    with changing(file) as known:
        known[taken.id] = taken
    refused = two.keys("import", str(file))
    assert (refused.exit_code, f"another key has the id {taken.id}" in refused.output) == (2, True)


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


@pytest.mark.slow
async def test_where_keys_are_is_said_once(two: Two, tmp_path: Path) -> None:
    """What stands on the command line goes before the environment; a password may not stand there."""
    file = tmp_path / "k.json"
    made = two.keys("create", "--namespace", "n", "--keys", str(file))
    assert (made.exit_code, file.exists()) == (0, True)
    assert json.loads(two.keys("list", "--json").stdout) == []
    both = two.keys("list", "--keys", str(file), "--cluster", two.url)
    assert (both.exit_code, "in a file or in a cluster" in both.output) == (2, True)
    for shown in (f"postgresql://u:secret@{HOST}/d", f"host={HOST} password=secret"):
        refused = two.keys("list", "--cluster", shown)
        assert (refused.exit_code, "AGENTMEM_UP_CLUSTER" in refused.output) == (2, True)
        assert "secret" not in refused.output
    nowhere = CliRunner().invoke(main, ["keys", "list", "--cluster", f"postgresql://{HOST}:{free_port()}/none"])
    assert (nowhere.exit_code, "cannot be used" in nowhere.output) == (2, True), nowhere.output
