"""Taking a node that is gone out of a cluster's list."""

from cache_service.cluster import nodes
from cache_service.cluster.nodes import StillThere
from cache_service.ledger.postgres.settings import Settings
from cache_service.offline.cluster.server import opened
from cache_service.offline.findings import CannotCheck


def forget(settings: Settings, name: str) -> None:
    """Forget a node. Raises CannotCheck where it is there, or is not known."""
    with opened(settings) as postgres:
        try:
            known = postgres.write_blocking(nodes.forget, name)
        except StillThere as error:
            raise CannotCheck(str(error)) from error
    if not known:
        raise CannotCheck(f"the cluster knows no node {name}; `agentmem cluster status` lists them")
