"""Which cluster this store is a node of, as settings name it."""

from dataclasses import dataclass, field
from pathlib import Path

from cache_service.settings import StoreSettings, Survives


@dataclass(frozen=True)
class ClusterSettings:
    """`url` is libpq's, of the ledger's database, maybe with a password; `survives` what an acknowledged turn must
    survive there; `node` this node's name; `advertise` the HOST:PORT where other nodes reach its gateway; `tls` the
    directory of the cluster's certificates; `schema` PostgreSQL's, where its tables are.
    """

    url: str = field(repr=False)
    node: str
    advertise: str
    survives: Survives = "server"
    tls: Path | None = None
    schema: str = "agentmem"


def cluster_settings(settings: StoreSettings) -> ClusterSettings:
    """Return which cluster a store of these settings, which name one, is a node of."""
    url, tls = settings.cluster.get_secret_value(), settings.cluster_tls
    where = tls.expanduser().absolute() if tls else None
    return ClusterSettings(url, settings.node, settings.advertise, settings.cluster_survives, where)
