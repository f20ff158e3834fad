"""The store as a whole, its remote tier included: what is opened in which order, and closed in the other."""

import asyncio
import logging
import sqlite3
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from agentmem.errors import AgentmemError, Unavailable
from agentmem.grpc_metrics import ProcessMetrics
from agentmem.logs import event
from agentmem.server import Register
from agentmem.v1 import agent_pb2_grpc, cache_store_pb2_grpc
from cache_service.files import references, waiting, warm_database
from cache_service.files.directory import DataDirectory, DirectoryUnusable, Probe
from cache_service.files.disk import disk_errors, sync_directory
from cache_service.ledger import schema
from cache_service.ledger.clock import Clock
from cache_service.ledger.database import Database, Failure, database_errors
from cache_service.ledger.writability import Writability
from cache_service.metrics import DiskCollector, RemoteCollector, RemoteMetrics, StoreMetrics
from cache_service.offline import adoption
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
    ) -> None:
        """Take the directory, open the database, sweep what a crash has left, and claim the object store. Blocks.

        Raises files.DirectoryUnusable, schema.SchemaTooNew, schema.ForeignDatabase, DatabaseDamaged, OSError and
        sqlite3.Error where the directory cannot be used as it is, remote.RemoteRefused where the object store cannot;
        AgentmemError where it cannot be used now, because the disk is full or another program holds the database. Then
        nothing is held.
        """
        self._opened = ExitStack()
        try:
            self._open(data, registry, limits, quotas, remote)
        except BaseException:
            with suppress(AgentmemError, sqlite3.Error):  # a disk that fails now fails again
                self.close()
            raise

    def _open(
        self, data: Path, registry: CollectorRegistry, limits: DiskLimits, quotas: Quotas, remote: RemoteSettings
    ) -> None:
        self._directory = DataDirectory(data)
        schema.refuse_newer(self._directory.database)
        with disk_errors():
            self._directory.acquire()
            self._opened.callback(self._directory.release)
            with database_errors():
                refuse_damaged(self._directory)
            self._directory.prepare()
            self._database = Database(self._directory.database)
            self._database.open()
            self._opened.callback(self._database.close)
            rows = Database(self._directory.warm_database, warm_database.prepare)
            with database_errors():
                warm_database.discard_unusable(self._directory.warm_database)
            rows.open()
            self._opened.callback(rows.close)
            if any(self._directory.published()) and not rows.read_blocking(references.any_published):
                adopted = self._database.read_blocking(
                    lambda ledger: rows.write_blocking(lambda warm: adoption.adopt(self._directory, ledger, warm))
                )
                event(log, "warm.db was lost and is made anew of ledgers and files", logging.WARNING, files=adopted)
            self.clock = Clock(self._database)
            self._opened.callback(self.clock.stop)
        last_use, probe, metrics = LastUse(), Probe(self._directory), StoreMetrics(registry)
        self._database.before_commit.append(last_use.flush_agents)
        rows.before_commit.append(last_use.flush_files)
        self.process_metrics = ProcessMetrics(registry, "store")
        """Of the process that this store is; for its GrpcServer."""
        self.writability = Writability(self._directory.root, self.clock)

        def failed(failure: Failure) -> None:
            metrics.failures.labels(failure).inc()
            self.writability.note(failure)

        self._database.on_failure = rows.on_failure = failed
        self._rows = WarmRows(self._directory, self._database, rows)
        self.warm = WarmTier(self._directory, self._database, self._rows, last_use, metrics, limits, quotas)
        self._blocks = BlockStore(self._directory, self._database, self._rows, self.clock, metrics, self.warm)
        self._opened.callback(self._blocks.close)
        try:
            with disk_errors():
                self._blocks.reconcile()
                probe.place()
            replicator, retriever = self._open_remote(remote, registry)
        except (TypeError, ValueError) as error:
            self._database.confirm(error)
            rows.confirm(error)
            raise
        streams = BlockStreams(self._directory, self._rows, self._blocks)
        self._opened.callback(streams.close)
        disk = DiskCollector(self._directory, self._database, self._rows, self.warm.limits, lambda: self.warm.free())
        registry.register(disk)
        ledgers = LedgerWriter(self._database, self._rows, quotas, self._blocks.make_room)
        shared = self._database, self._rows, self.clock, self._blocks, self.warm.hints
        cache = CacheStoreServicer(*shared, self._directory, streams, last_use, probe, ledgers, retriever)
        agents = AgentServicer(*shared, replicator)
        self.services: list[tuple[str, Register, Any]] = [
            ("agentmem.v1.CacheStoreService", cache_store_pb2_grpc.add_CacheStoreServiceServicer_to_server, cache),
            ("agentmem.v1.AgentService", agent_pb2_grpc.add_AgentServiceServicer_to_server, agents),
        ]

    def _open_remote(
        self, settings: RemoteSettings, registry: CollectorRegistry
    ) -> tuple[Replicator, Retriever] | tuple[None, None]:
        """Claim the place that `settings` name, and begin; None if they name none. Raises RemoteRefused."""
        if settings.location is None:
            self._rows.write_queue(waiting.leave)
            if left := self._database.write_blocking(objects.leave):
                event(log, "objects are left where they are, out of reach", logging.WARNING, location=left)
            return None, None
        from cache_service.tiers.remote.s3 import S3Tier  # a store without a remote tier does not load the client

        directory, rows, blocks, seconds = self._directory, self._rows, self._blocks, settings.timeout
        tier = S3Tier(settings.location, settings.endpoint, settings.region, seconds)
        metrics = RemoteMetrics(registry)
        replicator = Replicator(directory, self._database, rows, tier, metrics, blocks.quarantine, seconds)
        replicator.start()
        self._opened.callback(replicator.close)
        registry.register(RemoteCollector(self._database, rows))
        retriever = Retriever(directory, self._database, rows, blocks, tier, metrics, replicator.is_ready, seconds)
        self._opened.callback(retriever.close)
        return replicator, retriever

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
        self._opened.close()
