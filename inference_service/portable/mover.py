"""Exports and imports of one worker, put together."""

from pathlib import Path

from inference_service.portable.exporting import Exporter
from inference_service.portable.importing import Importer
from inference_service.portable.spool import Spool
from inference_service.storage.choosing import Transfers
from inference_service.storage.client import StoreClient
from inference_service.turns.fetching import Fetcher


class Mover:
    """What they need: the two that do the work, and the `spool` that bounds them. Event loop."""

    def __init__(self, store: StoreClient, fetcher: Fetcher, transfers: Transfers, directory: Path) -> None:
        self.spool = Spool(directory)
        self.exporter = Exporter(store, fetcher, self.spool)
        self.importer = Importer(store, transfers)
