"""Nodes on one PostgreSQL that know each other, and which of them has an agent."""

from __future__ import annotations

import asyncio
import json
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from agentmem.channels import connect
from agentmem.errors import AgentmemError
from agentmem.v1 import cluster_pb2, cluster_pb2_grpc, types_pb2
from agentmem.validation import AgentKey
from benchmarks.cluster.lists import listed
from benchmarks.live import scratch
from benchmarks.nodes import HOST, START_SECONDS, Node
from benchmarks.ports import free_ports
from gateway.cluster.cli.certificates import authority, issue
from inference_service.storage.client import StoreClient

MODEL: Final = "scripted"
_PORTS: Final = 4
"""For a gateway two, for other nodes one, and a spare one."""
_DAYS: Final = 2


@dataclass
class Cluster:
    nodes: dict[str, Node]

    async def known(self, count: int) -> None:
        """Wait until all gateways that run take so many nodes to be ready."""
        async with asyncio.timeout(START_SECONDS):
            for node in self.nodes.values():
                while "gateway" in node.processes and await _ready_nodes(node.http) != count:
                    await asyncio.sleep(0.1)

    async def holders(self, agents: Iterable[str], asked: Node) -> dict[str, str]:
        """Return where each agent's turn runs, or else its present state was committed; "" for nowhere."""
        async with connect(asked.store) as channel:
            stub = cluster_pb2_grpc.ClusterServiceStub(channel)

            async def holder(agent: str) -> str:
                key = types_pb2.AgentKey(namespace="default", agent_id=agent, model_id=MODEL)
                found = await stub.LocateAgent(cluster_pb2.LocateAgentRequest(key=key))
                return found.running_on or found.last_on

            return {agent: await holder(agent) for agent in agents}

    async def lists(self, agents: Iterable[str], asked: Node) -> dict[str, tuple[str, ...]]:
        async with connect(asked.store) as channel:
            store = StoreClient(channel)

            async def of(agent: str) -> tuple[str, ...]:
                while True:
                    try:
                        opened = await store.open(AgentKey("default", agent, MODEL), peek=True)
                    except AgentmemError:
                        await asyncio.sleep(0.2)
                        continue
                    return listed(opened.ledger) if opened.ledger is not None else ()

            return {agent: await of(agent) for agent in agents}


@asynccontextmanager
async def cluster(
    url: str,
    count: int,
    worker_flags: Sequence[str] = (),
    store_flags: Sequence[str] = (),
    made: Callable[..., Node] = Node,
    environments: Sequence[Mapping[str, str]] = (),
    **more: Any,
) -> AsyncIterator[Cluster]:
    """Start nodes with gateways on the database at libpq's `url`, known to each other; each may have variables."""
    run = uuid.uuid4().hex[:6]
    with scratch() as root:
        certificates = issue(authority(root / "tls"), root / "tls", HOST, _DAYS)
        first = free_ports(_PORTS * count)  # all at once, for it takes a while until they are listened on
        async with AsyncExitStack() as ending:
            found = Cluster({})
            for number in range(count):
                name, ports = f"{run}-{number}", first + _PORTS * number
                own = (f"--node={name}", f"--advertise={HOST}:{ports + 2}", f"--cluster-tls={certificates}")
                store = (*own, "--cluster-survives=crash", *store_flags)
                environment = {"AGENTMEM_STORE_CLUSTER": url, **(environments[number] if environments else {})}
                node = made(store, tuple(worker_flags), environment, gateway_flags=own, ports=ports, **more)
                ending.callback(node.destroy)
                found.nodes[name] = node
                node.start()
            for node in found.nodes.values():
                await node.ready()
            await found.known(count)
            yield found
            await asyncio.gather(*(asyncio.to_thread(node.leave) for node in found.nodes.values()))


async def _ready_nodes(http: str) -> int:
    def asked() -> int:
        with urllib.request.urlopen(f"{http}/v1/cluster", timeout=10) as answer:
            nodes = json.load(answer)["nodes"]
        return sum(bool(node.get("ready") and node.get("expires_in")) for node in nodes)

    return await asyncio.to_thread(asked)
