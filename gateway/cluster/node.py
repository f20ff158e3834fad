"""A gateway's part in a cluster."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from agentmem.channels import NODE_OPTIONS, ChannelsByAddress, connect
from agentmem.process.sockets import parse_address
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
        self.membership = Membership(
            store, local, settings.node, lambda: parts.peers.unready, metrics, self._memory, keys
        )
        self._others = ChannelsByAddress(partial(connect, tls=tls.client(), options=NODE_OPTIONS))
        self._placement = Placement(self.membership, local, self._others, metrics)
        self.worker = RoutedWorker(self._placement)
        """For HTTP and gRPC, instead of this node's."""
        self._address = settings.node_address
        self._door = partial(
            node_door, self._address, tls.server(), worker, store, self.membership, lambda: self.unready
        )
        metrics.cluster_age.set_function(lambda: self.membership.age)

    @property
    def unready(self) -> str:
        """Why this node takes no turns."""
        if self.membership.draining:
            return "this node is leaving the cluster"
        return self._parts.peers.unready or self.membership.problem

    async def start(self) -> Mapping[str, str]:
        """Listen for other nodes, then join."""
        self.door = self._door()
        await self.door.start()
        await self.door.set_serving(True)
        await self.membership.sync()
        self._watching = asyncio.create_task(self.membership.watch(self._parts.judge))
        return {"node": str(parse_address(self._address)._replace(port=self.door.port))}

    def tasks(self) -> set[asyncio.Task[Any]]:
        return {self._watching}

    def worker_changed(self) -> None:
        self.membership.wake()

    async def leave(self) -> None:
        await self.membership.leave()

    async def stop(self, grace: float) -> None:
        """Let calls of other nodes end within `grace`."""
        await self.door.stop(grace)
        self.membership.stop()
        await asyncio.wait({self._watching})
        await self._memory.close()

    async def close(self) -> None:
        await self._others.close()
