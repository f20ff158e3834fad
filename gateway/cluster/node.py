"""A gateway's part in a cluster."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from agentmem.channels import NODE_OPTIONS, ChannelsByAddress, connect
from agentmem.process.sockets import parse_address
from agentmem.v1 import cluster_pb2
from gateway.cluster.door import node_door
from gateway.cluster.keys import ClusterKeys
from gateway.cluster.membership import Membership
from gateway.cluster.metrics import ClusterMetrics
from gateway.cluster.placement import Placement
from gateway.cluster.routed import RoutedWorker
from gateway.cluster.stale_memory import StaleMemory
from gateway.extension import Extension, Parts
from gateway.upstream import ChannelWorker


class Node(Extension):
    """Event loop only."""

    def __init__(self, parts: Parts, metrics: ClusterMetrics, keys: ClusterKeys | None) -> None:
        """Raises SettingsError."""
        settings, worker, store = parts.settings, parts.channel, parts.store
        tls = settings.cluster_certificates()
        self._parts = parts
        local = ChannelWorker(worker)
        self._memory = StaleMemory(ChannelWorker(store), local, settings.node)
        self._membership = Membership(store, local, settings.node, self._own_unready, metrics, self._memory, keys)
        self._others = ChannelsByAddress(partial(connect, tls=tls.client(), options=NODE_OPTIONS))
        self._placement = Placement(self._membership, local, self._others, metrics)
        self.worker = RoutedWorker(self._placement)
        """For HTTP and gRPC, instead of this node's."""
        self._address = settings.node_address
        self._door = partial(
            node_door, self._address, tls.server(), worker, store, self._membership, lambda: self.unready
        )
        self.name = settings.node
        metrics.cluster_age.set_function(lambda: self._membership.age)

    @property
    def unready(self) -> str:
        """Why this node takes no turns."""
        if self._membership.draining:
            return "this node is leaving the cluster"
        return self._own_unready() or self._membership.problem

    def _own_unready(self) -> str:
        return self._parts.peers.unready

    @property
    def cluster_id(self) -> str:
        """Empty before the store said it."""
        return self._membership.cluster_id

    def nodes(self) -> list[cluster_pb2.Node]:
        return self._membership.report()

    async def start(self) -> Mapping[str, str]:
        """Listen for other nodes, then join."""
        self.door = self._door()
        await self.door.start()
        await self.door.set_serving(True)
        await self._membership.sync()
        self._watching = asyncio.create_task(self._membership.watch(self._parts.judge))
        return {"node": str(parse_address(self._address)._replace(port=self.door.port))}

    def tasks(self) -> set[asyncio.Task[Any]]:
        return {self._watching}

    def worker_changed(self) -> None:
        self._membership.wake()

    async def leave(self) -> None:
        await self._membership.leave()

    async def stop(self, grace: float) -> None:
        """Let calls of other nodes end within `grace`."""
        await self.door.stop(grace)
        self._membership.stop()
        await asyncio.wait({self._watching})
        await self._memory.close()

    async def close(self) -> None:
        await self._others.close()
