"""Makes a store a node of a cluster, where its settings name one."""

from cache_service.cluster.ledger import SharedLedger
from cache_service.cluster.settings import cluster_settings
from cache_service.files.directory import DataDirectory
from cache_service.ledger_home import LedgerHome
from cache_service.settings import StoreSettings


def attach(settings: StoreSettings, directory: DataDirectory) -> LedgerHome:
    """Return the cluster's ledgers. Raises SettingsError."""
    return SharedLedger(directory, cluster_settings(settings))
