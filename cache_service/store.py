"""The store as a whole, opened in one order, closed in the other."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from agentmem.errors import AgentmemError
from agentmem.process.grpc_metrics import ProcessMetrics
from agentmem.process.logs import event
from agentmem.process.server import Register
from agentmem.v1 import agent_pb2_grpc, cache_store_pb2_grpc
from cache_service.files import references, warm_database
from cache_service.files.directory import DataDirectory, Probe
from cache_service.files.disk import disk_errors
from cache_service.ledger.database import database_errors
from cache_service.ledger.ledgers import Failure, Ledgers
from cache_service.ledger_home import LedgerHome
from cache_service.metrics import DiskCollector, RemoteCollector, RemoteMetrics, StoreMetrics
from cache_service.own_ledger import OwnLedger
from cache_service.rpc.agents import AgentServicer
from cache_service.rpc.cache_store import CacheStoreServicer
from cache_service.tiers import objects
from cache_service.tiers.blocks import BlockStore
from cache_service.tiers.eviction import LastUse
from cache_service.tiers.limits import DiskLimits
from cache_service.tiers.quotas import NO_QUOTAS, LedgerWriter, Quotas
from cache_service.tiers.remote.contract import RemoteSettings
from cache_service.tiers.replication import Nodes, Replicator
from cache_service.tiers.retrieval import Retriever
from cache_service.tiers.streams import BlockStreams
from cache_service.tiers.warm import WarmTier
from cache_service.tiers.warm_rows import WarmRows

log = logging.getLogger(__name__)


UPKEEP_SECONDS = 10.0
DEFAULT_LIMITS = DiskLimits()
NO_REMOTE_TIER = RemoteSettings()


class Store:
    """One data directory, open. `services` are what a GrpcServer serves until `close`."""

    def __init__(
        self,
        data: Path,
        registry: CollectorRegistry,
        limits: DiskLimits = DEFAULT_LIMITS,
        quotas: Quotas = NO_QUOTAS,
        remote: RemoteSettings = NO_REMOTE_TIER,
        home: Callable[[DataDirectory], LedgerHome] = OwnLedger,
    ) -> None:
        """Open all of it, sweep what a crash has left, and claim the object store. Blocks.

        Raises files.DirectoryUnusable, schema.SchemaTooNew, schema.ForeignDatabase, DatabaseDamaged, OSError and
        sqlite3.Error where the directory cannot be used as it is, remote.RemoteRefused where the object store cannot,
        AgentmemError where it cannot be used now.
        """
        self._opened = ExitStack()
        try:
            self._open(data, registry, limits, quotas, remote, home)
        except BaseException:
            with suppress(AgentmemError, sqlite3.Error):  # a disk that fails now fails again
                self.close()
            raise

    def _open(
        self,
        data: Path,
        registry: CollectorRegistry,
        limits: DiskLimits,
        quotas: Quotas,
        remote: RemoteSettings,
        home: Callable[[DataDirectory], LedgerHome],
    ) -> None:
        self._directory = DataDirectory(data)
        self.ledger = ledger = home(self._directory)
        last_use = LastUse()
        ledger.refuse()
        with disk_errors():
            self._directory.acquire()
            self._opened.callback(self._directory.release)
            ledger.check()
            self._directory.prepare()
            ledger.open(last_use)
            self._database: Ledgers = ledger.database
            self._opened.callback(ledger.close)
            self._rows = rows = WarmRows(self._directory, ledger.database, ledger.is_own)
            with database_errors():
                warm_database.discard_unusable(self._directory.warm_database)
            rows.open()
            self._opened.callback(rows.close)
            if any(self._directory.published()) and not rows.read_blocking(references.any_published):
                ledger.adopt(rows)
            ledger.join(rows)
            self.clock = ledger.clock
        self._last_use, probe, metrics = last_use, Probe(self._directory), StoreMetrics(registry)
        rows.before_commit.append(last_use.flush_files)
        self.process_metrics = ProcessMetrics(registry, "store")
        """For this process's GrpcServer."""

        def failed(failure: Failure) -> None:
            metrics.failures.labels(failure).inc()

        ledger.watch(failed)
        rows.on_failure = self._database.on_failure
        self.warm = WarmTier(self._directory, self._database, self._rows, last_use, metrics, limits, quotas)
        self._blocks = BlockStore(self._directory, self._database, self._rows, self.clock, metrics, self.warm)
        self._opened.callback(self._blocks.close)
        with disk_errors():
            self._blocks.reconcile()
            probe.place()
        replicator, retriever = self._open_remote(remote, registry, ledger.nodes)
        streams = BlockStreams(self._directory, self._rows, self._blocks)
        self._opened.callback(streams.close)
        self.peers = ledger.peers(streams, registry)
        disk = DiskCollector(self._directory, self._database, self._rows, self.warm.limits, lambda: self.warm.free())
        registry.register(disk)
        ledgers = LedgerWriter(self._database, self._rows, quotas, self._blocks.make_room)
        shared = self._database, self._rows, self.clock, self._blocks, self.warm.hints
        cache = CacheStoreServicer(
            *shared, self._directory, streams, last_use, probe, ledgers, retriever, self.peers, ledger
        )
        ledger.serve(self._rows, self._blocks, registry)
        self._opened.callback(ledger.leave)
        agents = AgentServicer(*shared, replicator, ledger)
        self.services: list[tuple[str, Register, Any]] = [
            ("agentmem.v1.CacheStoreService", cache_store_pb2_grpc.add_CacheStoreServiceServicer_to_server, cache),
            ("agentmem.v1.AgentService", agent_pb2_grpc.add_AgentServiceServicer_to_server, agents),
            *ledger.services(),
        ]

    def _open_remote(
        self, settings: RemoteSettings, registry: CollectorRegistry, nodes: Nodes
    ) -> tuple[Replicator, Retriever] | tuple[None, None]:
        """Claim the place that `settings` name; None if they name none. Raises RemoteRefused."""
        if settings.location is None:
            if not nodes.name and (left := self._database.read_blocking(objects.left_at)):
                event(log, "objects are left where they are, out of reach", logging.WARNING, location=left)
            return None, None
        from cache_service.tiers.remote.s3 import S3Tier  # others do not load the client

        directory, rows, blocks, seconds = self._directory, self._rows, self._blocks, settings.timeout
        tier = S3Tier(settings.location, settings.endpoint, settings.region, seconds)
        metrics = RemoteMetrics(registry)
        replicator = Replicator(directory, self._database, rows, blocks, tier, metrics, seconds, nodes)
        replicator.start()
        self._opened.callback(replicator.close)
        registry.register(RemoteCollector(self._database, replicator.backlog))
        retriever = Retriever(
            directory, self._database, rows, blocks, tier, metrics, lambda: replicator.is_ready, seconds
        )
        self._opened.callback(retriever.close)
        return replicator, retriever

    async def upkeep(self, now: int) -> None:
        """End what is over at `now`, of the store's clock, and keep the warm tier within its limits."""
        await self.ledger.upkeep(self._last_use)
        await self._blocks.upkeep(now)

    async def keep_up(self) -> None:
        while True:
            try:
                self.clock.advance()
                await self.upkeep(self.clock.time())
            except (AgentmemError, OSError, sqlite3.Error) as error:
                event(log, "upkeep failed", logging.WARNING, error=str(error))
            except Exception:  # without upkeep the disk would fill
                log.exception("upkeep failed")
            await asyncio.sleep(UPKEEP_SECONDS)

    async def disconnect(self) -> None:
        if self.peers is not None:
            await self.peers.close()

    def close(self) -> None:
        """Finish what is running, and release the directory."""
        self._opened.close()
