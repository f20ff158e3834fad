"""The store as a whole, its remote tier included: what is opened in which order, and closed in the other."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from agentmem.errors import AgentmemError, Unavailable
from agentmem.grpc_metrics import ProcessMetrics
from agentmem.logs import event
from agentmem.server import Register
from agentmem.v1 import agent_pb2, agent_pb2_grpc, cache_store_pb2, cache_store_pb2_grpc
from cache_service.files.directory import DataDirectory, DirectoryUnusable, Probe
from cache_service.files.disk import disk_errors, sync_directory
from cache_service.ledger import schema
from cache_service.ledger.clock import Clock
from cache_service.ledger.database import Database, Failure, database_errors
from cache_service.ledger.writability import Writability
from cache_service.metrics import DiskCollector, RemoteCollector, RemoteMetrics, StoreMetrics
from cache_service.offline.database import refuse_damaged
from cache_service.rpc.agents import AgentServicer
from cache_service.rpc.cache_store import CacheStoreServicer
from cache_service.tiers import objects
from cache_service.tiers.blocks import BlockStore
from cache_service.tiers.eviction import LastUse
from cache_service.tiers.limits import DiskLimits
from cache_service.tiers.quotas import NO_QUOTAS, LedgerWriter, Quotas
from cache_service.tiers.remote.contract import RemoteSettings
from cache_service.tiers.replication import Replicator
from cache_service.tiers.retrieval import Retriever
from cache_service.tiers.streams import BlockStreams
from cache_service.tiers.warm import WarmTier

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
    ) -> None:
        """Take the directory, open the database, sweep what a crash has left, and claim the object store. Blocks.

        Raises files.DirectoryUnusable, schema.SchemaTooNew, schema.ForeignDatabase, DatabaseDamaged, OSError and
        sqlite3.Error where the directory cannot be used as it is, remote.RemoteRefused where the object store cannot;
        AgentmemError where it cannot be used now, because the disk is full or another program holds the database. Then
        nothing is held.
        """
        self._directory = DataDirectory(data)
        schema.refuse_newer(self._directory.database)
        with disk_errors():
            self._directory.acquire()
            try:
                with database_errors():
                    refuse_damaged(self._directory)
                self._directory.prepare()
                self._database = Database(self._directory.database)
                self._database.open()
                self.clock = self._started_clock()
            except BaseException:
                self._directory.release()
                raise
        last_use = LastUse()
        self._database.before_commit(last_use.flush)
        self.process_metrics = ProcessMetrics(registry, "store")
        """Of the process that this store is; for its GrpcServer."""
        metrics = StoreMetrics(registry)
        self.writability = Writability(self._directory.root, self._database, self.clock)
        self._database.on_failure = self._failed(metrics)
        self.warm = WarmTier(self._directory, self._database, last_use, metrics, limits, quotas)
        self._blocks = BlockStore(self._directory, self._database, self.clock, metrics, self.warm)
        self._streams = BlockStreams(self._directory, self._database, self._blocks)
        probe = Probe(self._directory)
        self._remote: RemoteSide | None = None
        try:
            with disk_errors():
                self._blocks.reconcile()
                probe.place()
            self._remote = open_remote(remote, self._directory, self._database, self._blocks, registry)
        except BaseException as error:
            try:
                if isinstance(error, TypeError | ValueError):
                    self._database.confirm(error)
            finally:
                with suppress(AgentmemError, sqlite3.Error):  # a disk that fails now fails again
                    self.close()
            raise
        registry.register(DiskCollector(self._directory, self._database, self.warm.limits, lambda: self.warm.free()))
        ledgers = LedgerWriter(self._database, quotas, self._blocks.make_room)
        cache_store = CacheStoreServicer(
            self._directory,
            self._database,
            self.clock,
            self._blocks,
            self._streams,
            last_use,
            self.warm.hints,
            probe,
            ledgers,
            self._remote and self._remote.retriever,
        )
        self.services: list[tuple[str, Register, Any]] = [
            (
                cache_store_pb2.DESCRIPTOR.services_by_name["CacheStoreService"].full_name,
                cache_store_pb2_grpc.add_CacheStoreServiceServicer_to_server,
                cache_store,
            ),
            (
                agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name,
                agent_pb2_grpc.add_AgentServiceServicer_to_server,
                AgentServicer(
                    self._database, self.clock, self._blocks, self.warm.hints, self._remote and self._remote.replicator
                ),
            ),
        ]

    def _started_clock(self) -> Clock:
        try:
            return Clock(self._database)
        except BaseException:
            with suppress(AgentmemError, sqlite3.Error):
                self._database.close()
            raise

    async def stay_whole(self) -> None:
        """Put store.db back where it was removed under us, with all that it had, and raise: the store has to start
        again. Where another is in its place, what we had goes beside it.

        Raises Unavailable and DirectoryUnusable then. Where it cannot be written, the store serves on, and says so.
        """
        if self._database.is_in_place():
            return
        path = self._directory.database
        kept = path.with_name(f"{path.name}-served-{time.time_ns()}")
        try:
            await self._database.leave(kept)
        except (AgentmemError, OSError, sqlite3.Error) as error:
            with suppress(OSError):
                kept.unlink(missing_ok=True)
            event(log, "store.db was removed, and cannot be put back yet", logging.ERROR, error=str(error))
            return
        if path.exists():
            raise DirectoryUnusable(
                f"another file was put in the place of {path} while it was served; nothing was lost: what the store had"
                f" is in {kept}; put the one that is right in its place, and start the store again"
            )
        kept.replace(path)
        sync_directory(path.parent)
        raise Unavailable(f"{path} was removed while it was served; it is there again, with all that it had")

    def _failed(self, metrics: StoreMetrics) -> Callable[[Failure], None]:
        def noted(failure: Failure) -> None:
            metrics.failures.labels(failure).inc()
            self.writability.note(failure)

        return noted

    async def upkeep(self, now: int) -> None:
        """End what is over at `now`, a time of the store's clock, and keep the warm tier within its limits."""
        await self._blocks.upkeep(now)

    async def keep_up(self) -> None:
        """Do the upkeep again and again, until cancelled. A failure is logged, and the next round tries again."""
        while True:
            try:
                self.clock.advance()
                await self.upkeep(self.clock.time())
            except (AgentmemError, OSError, sqlite3.Error) as error:
                event(log, "upkeep failed", logging.WARNING, error=str(error))
            await asyncio.sleep(UPKEEP_SECONDS)

    def close(self) -> None:
        """Finish what is running, write it down and release the directory. No service may be called any more."""
        self._streams.close()
        if self._remote is not None:
            self._remote.close()
        self._blocks.close()
        self.clock.stop()
        try:
            self._database.close()
        finally:
            self._directory.release()


class RemoteSide(NamedTuple):
    """What sends files, and what brings them back."""

    replicator: Replicator
    retriever: Retriever

    def close(self) -> None:
        """Stop both. Before the BlockStore and the database."""
        self.retriever.close()
        self.replicator.close()


def open_remote(
    settings: RemoteSettings,
    directory: DataDirectory,
    database: Database,
    blocks: BlockStore,
    registry: CollectorRegistry,
) -> RemoteSide | None:
    """Claim the place that `settings` name, and begin; None if they name none. Blocks. Raises RemoteRefused."""
    if settings.location is None:
        if left := database.write_blocking(objects.leave):
            event(log, "objects are left where they are, out of reach", logging.WARNING, location=left)
        return None
    from cache_service.tiers.remote.s3 import S3Tier  # a store without a remote tier does not load the client

    tier = S3Tier(settings.location, settings.endpoint, settings.region, settings.timeout)
    metrics = RemoteMetrics(registry)
    replicator = Replicator(directory, database, tier, metrics, blocks.quarantine, seconds=settings.timeout)
    replicator.start()
    registry.register(RemoteCollector(database))
    retriever = Retriever(directory, database, blocks, tier, metrics, replicator.is_ready, seconds=settings.timeout)
    return RemoteSide(replicator, retriever)
