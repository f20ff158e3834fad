import asyncio
from contextlib import AbstractContextManager
from random import Random
from typing import Final

import grpc

from agentmem.channels import ChannelsByAddress
from agentmem.validation import AgentKey
from gateway.cluster.membership import Membership
from gateway.cluster.metrics import ClusterMetrics
from gateway.cluster.router import Located, Route, candidates, for_anyone
from gateway.upstream import ChannelWorker
from gateway.worker import Worker

MOST_NODES: Final = 3
"""Nodes that a call is tried on."""

_CONNECT_SECONDS: Final = 2.0
"""Then the next node is tried."""


class Placement:
    """Event loop only."""

    def __init__(
        self, membership: Membership, local: Worker, others: ChannelsByAddress, metrics: ClusterMetrics
    ) -> None:
        self.local = local
        self.metrics = metrics
        self._own = membership.own
        self._membership = membership
        self._others = others
        self._random = Random()

    async def route(self, key: AgentKey) -> Route:
        """Return at most MOST_NODES for a call about an agent, or a turn without one."""
        nodes = self._membership.nodes()
        if not key.agent_id:
            route = for_anyone(key.model_id, nodes, self._own, self._random)
        else:
            alone = sum(node.ready for node in nodes) < 2
            route = candidates(key, nodes, Located() if alone else await self._membership.locate(key), self._own)
        return Route(route.nodes[:MOST_NODES], route.reason)

    def live(self) -> list[str]:
        """Return this node and all others whose lease has not ended."""
        names = [node.name for node in self._membership.nodes() if self._membership.alive(node.name)]
        return [self._own, *(name for name in names if name != self._own)]

    def others(self) -> list[str]:
        """Return the ready nodes besides this one."""
        return [node.name for node in self._membership.nodes() if node.ready and node.name != self._own]

    async def reach(self, name: str) -> Worker | None:
        """Return a node's worker, None without a connection, by the present list of nodes."""
        if name == self._own:
            return self.local
        address = next((node.address for node in self._membership.nodes() if node.name == name), "")
        channel = self._others.to(address) if address else None
        return ChannelWorker(channel) if channel is not None and await _connects(channel) else None

    def turn(self, name: str, key: AgentKey) -> AbstractContextManager[None]:
        return self._membership.turn(key) if name == self._own else self._membership.sent(name, key)


async def _connects(channel: grpc.aio.Channel) -> bool:
    """Return whether there is a connection. Nothing is sent."""
    ready, failed = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            while (state := channel.get_state(try_to_connect=True)) is not ready:
                if state in (failed, grpc.ChannelConnectivity.SHUTDOWN):
                    return False
                await channel.wait_for_state_change(state)
    except TimeoutError:
        return False
    return True
