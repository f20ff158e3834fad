"""The ledgers of several machines on PostgreSQL, in the place of store.db. The data directory may be lost."""

import logging
from collections.abc import Callable, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, Gauge

from agentmem.channels import NODE_OPTIONS, connect
from agentmem.errors import Unavailable
from agentmem.kv.ledger import Version
from agentmem.process.cluster_tls import read_cluster_tls
from agentmem.process.logs import event
from agentmem.process.server import Register
from agentmem.process.sockets import parse_address
from agentmem.v1 import cluster_pb2_grpc
from agentmem.validation import AgentKey
from cache_service.cluster import nodes
from cache_service.cluster.clock import SharedClock
from cache_service.cluster.membership import Membership
from cache_service.cluster.nodes import Said
from cache_service.cluster.peers import PeerBlocks
from cache_service.cluster.postgres import schema
from cache_service.cluster.postgres.database import Postgres
from cache_service.cluster.postgres.listening import Listener
from cache_service.cluster.postgres.settings import Settings, UnsafeServer
from cache_service.cluster.servicer import ClusterServicer
from cache_service.files import holding
from cache_service.files.directory import DataDirectory, DirectoryUnusable
from cache_service.ledger.database import Database
from cache_service.ledger.ledgers import Failure
from cache_service.ledger.schema import ForeignDatabase
from cache_service.ledger_home import LedgerHome
from cache_service.offline.database import IMPORTING
from cache_service.settings import StoreSettings
from cache_service.tiers import objects
from cache_service.tiers.blocks import BlockStore
from cache_service.tiers.eviction import LastUse
from cache_service.tiers.replication import Nodes
from cache_service.tiers.streams import BlockStreams
from cache_service.tiers.warm_rows import WarmRows

log = logging.getLogger(__name__)


def attach(settings: StoreSettings, directory: DataDirectory) -> "SharedLedger":
    url, tls = settings.cluster.get_secret_value(), settings.cluster_tls
    server = Settings(url, node=settings.node, survives=settings.cluster_survives)
    return SharedLedger(directory, server, settings.advertise, tls.expanduser().absolute() if tls else None)


class SharedLedger(LedgerHome):
    is_own = False
    database: Postgres
    clock: SharedClock

    def __init__(self, directory: DataDirectory, server: Settings, advertise: str, tls: Path | None = None) -> None:
        """`advertise` is the HOST:PORT of this node's gateway, `tls` a directory."""
        self._directory = directory
        self._node, self._advertise = server.node, advertise
        self.database = Postgres(server, schema.STEPS)
        self._hurried = replace(server, writers=1, readers=1, silent_seconds=2.0, connect_seconds=2.0)
        self._beats = Postgres(self._hurried)
        self.clock = SharedClock()
        self.membership: Membership | None = None
        self.connect: Callable[[str], grpc.aio.Channel] | None = None
        """Opens a channel to another node's door."""
        if tls is not None:
            client = read_cluster_tls(tls, parse_address(advertise).host).client()
            self.connect = partial(connect, tls=client, options=NODE_OPTIONS)

    def refuse(self) -> None:
        """Raise DirectoryUnusable for a single machine's directory, also where its import is not over."""
        if self._directory.database.exists() or (self._directory.root / IMPORTING).exists():
            raise DirectoryUnusable(
                f"{self._directory.root} has ledgers of its own; bring them into the cluster (agentmem cluster import),"
                " or choose another --data for this node's files"
            )

    def open(self, _: LastUse) -> None:
        """Raises DirectoryUnusable, Unavailable, SchemaTooNew."""
        try:
            self.database.open()
        except (UnsafeServer, ForeignDatabase) as error:
            raise DirectoryUnusable(f"--cluster: {error}") from error

    def adopt(self, _: Database) -> None:
        """Delete files without rows: to find their agents would take longer."""
        event(log, "warm.db was lost; the files of KV beside it are deleted", logging.WARNING)

    def join(self, rows: Database) -> None:
        """Raises DirectoryUnusable where another node has this name."""
        cluster_id = self.database.read_blocking(nodes.cluster_id)
        name = rows.write_blocking(holding.belong, cluster_id)
        said = Said(self._node, name, self._advertise)
        self._listener = Listener(self._hurried)
        self.membership = Membership(
            said, cluster_id, self._beats, self.clock, self._listener.wait, self._listener.wake, self.own_holders
        )
        try:
            self.membership.join()
        except nodes.NameTaken as error:
            raise DirectoryUnusable(str(error)) from error
        self.database.write_blocking(objects.end_all_uploads, said.name)  # whether or not it still has --remote
        event(log, "joined the cluster", cluster_id=cluster_id, node=said.name)

    def holders(self) -> Set[str]:
        return self.own_holders() | (self.membership.holders() if self.membership is not None else set())

    @property
    def nodes(self) -> Nodes:
        return self.membership or Nodes()

    def serve(self, rows: WarmRows, blocks: BlockStore, registry: CollectorRegistry) -> None:
        assert self.membership is not None, "join has not been called"
        self.membership.start(
            lambda: rows.read_blocking(holding.followed),
            blocks.follow,
            blocks.follow_anew,
        )
        measure(self.membership, registry)

    def peers(self, streams: BlockStreams, registry: CollectorRegistry) -> PeerBlocks | None:
        reach = self.connect
        return None if reach is None else PeerBlocks(self._holder, reach, streams, registry)

    async def _holder(self, key: AgentKey) -> tuple[str, Version]:
        """Return the node that made an agent's present state, "" for this one, and that state's version."""
        assert self.membership is not None, "join has not been called"
        made, version = await self.database.read(nodes.maker, key)
        node = None if made == self.membership.name else self.membership.live(made)
        return "" if node is None else node.address, version

    def watch(self, failed: Callable[[Failure], None]) -> None:
        self.database.on_failure = self._beats.on_failure = failed

    def services(self) -> list[tuple[str, Register, Any]]:
        assert self.membership is not None, "join has not been called"
        servicer = ClusterServicer(self.database, self.membership)
        return [("agentmem.v1.ClusterService", cluster_pb2_grpc.add_ClusterServiceServicer_to_server, servicer)]

    async def unfollowed(self, key: AgentKey) -> int:
        return await self.database.read(nodes.unfollowed, key)

    def wake_others(self) -> None:
        if self.membership is not None:
            self.membership.wake()

    async def problem(self) -> str:
        return "" if self.membership is None else self.membership.problem()

    async def stay_whole(self) -> None:
        if self.membership is not None and self.membership.lost is not None:
            raise DirectoryUnusable(str(self.membership.lost))

    async def upkeep(self, last_use: LastUse) -> None:
        """Write times of use: with every commit it would lock rows of other agents."""
        if last_use.any_agents():
            try:
                await self.database.write(last_use.flush_agents)
            except Unavailable as error:
                event(log, "times of use are written later", logging.WARNING, error=error.message)

    def leave(self) -> None:
        if self.membership is not None:
            self.membership.leave()
            self._listener.close()
            self.membership = None

    def close(self) -> None:
        self.leave()
        self._beats.close()
        self.database.close()


def measure(membership: Membership, registry: CollectorRegistry) -> None:
    nodes = Gauge(
        "agentmem_cluster_nodes",
        "Nodes of the cluster as this one knows them: ready, draining, other (starting, or not serving) or gone"
        " (not heard of for 10 s).",
        ["state"],
        registry=registry,
    )
    for state in ("ready", "draining", "other", "gone"):
        nodes.labels(state).set_function(partial(lambda each: membership.counts()[each], state))
    age = "Seconds since the last heartbeat that the ledger's database has answered."
    Gauge("agentmem_cluster_heartbeat_age_seconds", age, registry=registry).set_function(
        lambda: membership.silent_seconds
    )
