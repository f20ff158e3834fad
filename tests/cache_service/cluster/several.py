"""Stores that are nodes of one cluster, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agentmem.channels import connect
from agentmem.v1 import cluster_pb2, cluster_pb2_grpc, types_pb2
from cache_service.cluster.membership import Membership
from cache_service.cluster.postgres.settings import Settings
from cache_service.store import NO_REMOTE_TIER
from cache_service.tiers.remote.contract import RemoteSettings
from tests.cache_service import kv
from tests.cache_service.conftest import Running, running

MODEL = cluster_pb2.NodeModel(model_id="m", fingerprint="f", loaded=True)


@dataclass(frozen=True)
class Node:
    store: Running
    cluster: cluster_pb2_grpc.ClusterServiceAsyncStub

    async def sync(self, *running: types_pb2.AgentKey, ready: bool = True) -> dict[str, cluster_pb2.Node]:
        """Sync as this node's gateway; return nodes."""
        request = cluster_pb2.SyncNodeRequest(ready=ready, load=len(running), models=[MODEL], running=running)
        return {node.name: node for node in (await self.cluster.SyncNode(request)).nodes}

    async def locate(self, agent: str = "ada") -> tuple[str, str]:
        """On which node a turn of an agent runs, and which made its state."""
        found = await self.cluster.LocateAgent(cluster_pb2.LocateAgentRequest(key=kv.key(agent)))
        return found.running_on, found.last_on

    @property
    def membership(self) -> Membership:
        membership = self.store.store.ledger.membership
        assert membership is not None
        return membership

    def cut_off(self) -> Callable[[], None]:
        """Let no heartbeat reach the ledger, until the function that this returns is called."""
        membership = self.membership
        beat, membership._beat = membership._beat, lost  # type: ignore[method-assign]

        def again() -> None:
            membership._beat = beat  # type: ignore[method-assign]
            membership.wake()

        return again


def lost() -> object:
    raise ConnectionError("cut off")


@asynccontextmanager
async def node(
    data: Path, cluster: Settings, name: str, remote: RemoteSettings = NO_REMOTE_TIER
) -> AsyncIterator[Node]:
    """A node of this name, in a directory of its own beside `data`."""
    data.parent.mkdir(exist_ok=True)
    async with (
        running(data.with_name(name), remote=remote, cluster=replace(cluster, node=name)) as store,
        connect(f"unix:{store.data}/store.sock") as channel,
    ):
        yield Node(store, cluster_pb2_grpc.ClusterServiceStub(channel))


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.02)
