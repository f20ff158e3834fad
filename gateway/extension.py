"""How a ring (`gateway.rings`) becomes part of a gateway: its module `attach` has `attach(parts: Parts) -> None`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any

import grpc
from starlette.routing import Route

from agentmem.channels import connect
from agentmem.process.server import Register
from gateway.edge.callers import Authenticator
from gateway.edge.key_ring import KeySource
from gateway.metrics import GatewayMetrics
from gateway.peers import Peers
from gateway.running import RunningTurns
from gateway.settings import GatewaySettings, authenticator
from gateway.upstream import ChannelWorker
from gateway.worker import Worker


class Extension:
    """A ring's work. Event loop only: `start`, `leave`, `stop`, `close`, each once. They end in the reverse order."""

    @property
    def unready(self) -> str:
        """Why no turn should come here; empty if one may."""
        return ""

    def worker_changed(self) -> None:
        """The worker began or ceased to serve."""

    async def start(self) -> Mapping[str, str]:
        """Return addresses to publish. Raises AddressError."""
        return {}

    def tasks(self) -> set[asyncio.Task[Any]]:
        """Return what runs from `start` to `stop`: the gateway ends when one of them ends."""
        return set()

    async def leave(self) -> None:
        """From now on the gateway drains."""

    async def stop(self, grace: float) -> None:
        """End within `grace` seconds, while the servers do."""

    async def close(self) -> None:
        """Nothing needs it any more."""


class Parts:
    """Before the servers are made, rings may replace `worker`, set `keys`, and add `services`, `routes` and
    `extensions`.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        worker_changed: Callable[[bool], Awaitable[None]],
        judge: Callable[[], Awaitable[None]],
    ) -> None:
        self.settings = settings
        self.judge = judge
        """To be awaited when an extension's `unready` may differ."""
        self.metrics = GatewayMetrics()
        self.channel: grpc.aio.Channel = connect(settings.worker_target)
        self.store: grpc.aio.Channel = connect(settings.store_target)
        self.peers = Peers(self.channel, self.store, self.metrics.process.answered, worker_changed)
        self.worker: Worker = ChannelWorker(self.channel)
        self.keys: KeySource | None = None
        self.services: list[tuple[str, Register, Any]] = []
        """Services that this process serves itself, as GrpcServer takes them; each also is a Service."""
        self.routes: list[Route] = []
        self.extensions: list[Extension] = []
        self.cluster: Any = None
        """This gateway's node, for rings that are attached later."""

    @cached_property
    def authenticator(self) -> Authenticator:
        """Raises SettingsError."""
        return authenticator(self.settings, self.keys)

    @cached_property
    def running(self) -> RunningTurns:
        return RunningTurns(self.worker)

    def unready(self) -> str:
        return next(filter(None, (extension.unready for extension in self.extensions)), "")

    async def close(self) -> None:
        await asyncio.gather(self.channel.close(None), self.store.close(None))
