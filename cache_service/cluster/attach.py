"""A node of a cluster, where settings name one."""

from cache_service.cluster.ledger import ClusterSettings, SharedLedger
from cache_service.files.directory import DataDirectory
from cache_service.ledger_home import LedgerHome
from cache_service.settings import StoreSettings


def attach(settings: StoreSettings, directory: DataDirectory) -> LedgerHome:
    url, tls = settings.cluster.get_secret_value(), settings.cluster_tls
    where = tls.expanduser().absolute() if tls else None
    return SharedLedger(
        directory, ClusterSettings(url, settings.node, settings.advertise, settings.cluster_survives, where)
    )
