"""Makes a gateway a node of a cluster, where its settings name one."""

from starlette.routing import Route

from gateway.cluster.endpoint import ClusterEndpoint
from gateway.cluster.keys import ClusterKeys
from gateway.cluster.metrics import ClusterMetrics
from gateway.cluster.node import Node
from gateway.extension import Parts


def attach(parts: Parts) -> None:
    """Replace the worker by that of all nodes, and the keys by the cluster's. Raises SettingsError."""
    settings, metrics = parts.settings, ClusterMetrics(parts.metrics.registry)
    keys = ClusterKeys() if settings.cluster_keys else None
    node = None
    if settings.node:
        node = Node(parts, metrics, keys)
        parts.worker, parts.keys, parts.cluster = node.worker, keys, node
        parts.extensions.append(node)
    parts.routes.append(Route("/v1/cluster", ClusterEndpoint(node), methods=["GET"]))
