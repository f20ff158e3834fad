"""The store's side of the remote tier: what is opened for it, where there is one, and closed."""

import logging
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from agentmem.logs import event
from cache_service import place
from cache_service.blocks import BlockStore
from cache_service.database import Database
from cache_service.files import DataDirectory
from cache_service.remote import RemoteSettings, connect
from cache_service.remote_metrics import RemoteCollector, RemoteMetrics
from cache_service.replication import Replicator
from cache_service.retrieval import Retriever

log = logging.getLogger(__name__)


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
        if left := database.write_blocking(place.leave):
            event(log, "objects are left where they are, out of reach", logging.WARNING, location=left)
        return None
    tier = connect(settings)
    metrics = RemoteMetrics(registry)
    replicator = Replicator(
        directory,
        database,
        tier,
        metrics,
        blocks.quarantine_soon,
        seconds=settings.timeout,
        abandon=settings.abandon,
    )
    replicator.start()
    registry.register(RemoteCollector(database))

    return RemoteSide(
        replicator, Retriever(directory, database, blocks, tier, metrics, replicator.is_ready, seconds=settings.timeout)
    )
