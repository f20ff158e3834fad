"""Channels to the cluster's other nodes: one for each address, kept while the node is known."""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

import grpc

from agentmem.channels import NODE_OPTIONS, ClientTls, connect
from gateway.cluster.router import NodeView

CONNECT_SECONDS: Final = 2.0
"""What a connection may take before the next node is tried."""

ABSENT_SECONDS: Final = 30.0
"""Several times what it takes until all nodes are listed again."""


class NodeChannels:
    """Event loop only."""

    def __init__(self, tls: ClientTls) -> None:
        self._tls = tls
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._absent: dict[str, float] = {}

    def to(self, address: str) -> grpc.aio.Channel:
        """Return the channel to a node."""
        if (found := self._channels.get(address)) is None:
            found = self._channels[address] = connect(address, tls=self._tls, options=NODE_OPTIONS)
        return found

    def keep(self, nodes: Iterable[NodeView]) -> None:
        """Close the channels to others that have been absent for a while: after a failover of the database nodes come
        back one by one. What they carry still gets a while to end.
        """
        now, known = time.monotonic(), {node.address for node in nodes}
        self._absent = {each: self._absent.get(each, now) for each in self._channels.keys() - known}
        for address in [each for each, since in self._absent.items() if now - since >= ABSENT_SECONDS]:
            task = asyncio.create_task(self._channels.pop(address).close(60.0))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all, at once."""
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await asyncio.gather(*(channel.close(None) for channel in self._channels.values()))


async def reachable(channel: grpc.aio.Channel, seconds: float) -> bool:
    """Return whether there is a connection, made within `seconds` if there was none. Nothing is sent."""
    ready, failed = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE
    try:
        async with asyncio.timeout(seconds):
            while (state := channel.get_state(try_to_connect=True)) is not ready:
                if state in (failed, grpc.ChannelConnectivity.SHUTDOWN):
                    return False
                await channel.wait_for_state_change(state)
    except TimeoutError:
        return False
    return True
