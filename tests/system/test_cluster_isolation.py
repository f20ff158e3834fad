"""A key of one namespace gets nothing of another's at any node of a cluster, through HTTP and gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from agentmem.v1 import agent_pb2
from gateway.cli.main import main
from tests import postgres
from tests.system.isolation import AGENT, RPCS, SECRET
from tests.system.isolation_calls import Caller, all_of, bobs, calling, furnish, try_all, try_rpc
from tests.system.secrets_of_agents import DEMO
from tests.system.stack import Stack
from tests.system.test_cluster import Cluster, cluster

SERVER = ("--cluster-survives", "nothing")
NODES = "ab"
READING = {f"agentmem.v1.AgentService/{name}" for name in ("GetAgent", "ProbeAgent", "ExportAgent")}


def keys(conninfo: str, *arguments: str) -> Result:
    done = CliRunner().invoke(main, ["keys", *arguments, *SERVER, "--cluster", conninfo])
    assert done.exit_code == 0, done.output
    return done


def made(conninfo: str, namespace: str, *more: str) -> str:
    return keys(conninfo, "create", "--namespace", namespace, "--max-per-minute", "0", *more).stdout.strip()


@pytest.fixture
async def two(tmp_path: Path, postgres_server: postgres.Server) -> AsyncIterator[Cluster]:
    flags, room = ("--cluster-keys",), 1 << 27
    async with cluster(tmp_path, DEMO, postgres_server, *NODES, gateway_flags=flags, pool_bytes=room) as nodes:
        yield nodes


async def status(stack: Stack, key: str) -> int:
    """Return the HTTP door's status for a key: the document needs one, and no worker."""
    async with httpx.AsyncClient(base_url=stack.url, timeout=30) as http:
        return (await http.get("/openapi.json", headers={"authorization": f"Bearer {key}"})).status_code


async def until_says(stack: Stack, key: str, said: int) -> None:
    async with asyncio.timeout(30):
        while await status(stack, key) != said:
            await asyncio.sleep(0.05)


async def told_wrong(asker: Caller, nobody: Caller) -> set[str]:
    """The reading RPCs whose answers the table finds wrong."""
    return {rpc for rpc in READING for entry in RPCS[rpc] if await try_rpc(asker, nobody, rpc, entry)}


@pytest.mark.slow
async def test_a_key_opens_its_own_namespace_only_on_every_node(two: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two strangers ask, one at each node, for what bob has made through the first one. Then the second node's gateway
    is one with a fault, which the same questions must find.
    """
    a, b = (two.machines[name].stack for name in NODES)
    bobs_key, adas, eves = (made(two.conninfo, name) for name in ("bob", "ada", "eve"))
    for stack in (a, b):
        await until_says(stack, eves, 200)

    async with (
        calling(a, bobs_key, adas, "") as (bob, ada, nobody),
        calling(b, bobs_key, eves, "") as (bob_at_b, eve, nobody_at_b),
    ):

        async def settled(_: Caller) -> None:
            async with asyncio.timeout(60):
                while True:
                    listed = [{each.key.agent_id: each for each in await bobs(door)} for door in (bob, bob_at_b)]
                    if all(
                        any(found[name].warm_tokens == agent.tokens for found in listed)
                        for name, agent in listed[0].items()
                    ):
                        return
                    await asyncio.sleep(0.05)

        await furnish(bob, settled)
        before = await all_of(bob)
        assert await try_all(ada, bob, nobody) == []
        assert await try_all(eve, bob_at_b, nobody_at_b) == []
        assert await all_of(bob) == before
        for asker in (ada, eve):
            theirs = (await asker.agents.ListAgents(agent_pb2.ListAgentsRequest())).agents
            assert {"bobs-prefill", "bobs-chat"} <= {agent.key.agent_id for agent in theirs}  # of the same names
            assert AGENT not in {agent.key.agent_id for agent in theirs}
        for stack in (a, b):
            for name in ("store", "worker", "gateway"):
                for secret in (SECRET.strip(), bobs_key, adas, eves):
                    assert secret not in stack.logs(name)

        b.becomes("gateway", "tests.system.faulty_gateway")
        for fault in ("door", "routing", ""):
            monkeypatch.setenv("FAULT", fault)
            b.kill("gateway")
            await b.up("gateway")
            await until_says(b, eves, 200)
            for rpc in READING:
                assert isinstance(await bob_at_b.call(rpc, RPCS[rpc][0].ask("")), list)
            assert await told_wrong(eve, nobody_at_b) == (READING if fault else set()), fault
