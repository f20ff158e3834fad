"""A node of a cluster, where settings name one, and GET /v1/cluster."""

from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.api.contract_json import to_json
from gateway.cluster.keys import ClusterKeys
from gateway.cluster.membership import Membership
from gateway.cluster.metrics import ClusterMetrics
from gateway.cluster.node import Node
from gateway.edge.authorization import require_admin
from gateway.edge.callers import caller
from gateway.extension import Parts


def attach(parts: Parts) -> None:
    """Raises SettingsError."""
    settings, metrics = parts.settings, ClusterMetrics(parts.metrics.registry)
    keys = ClusterKeys() if settings.cluster_keys else None
    node = None
    if settings.node:
        node = Node(parts, metrics, keys)
        parts.worker, parts.keys, parts.cluster = node.worker, keys, node
        parts.extensions.append(node)
    parts.routes.append(Route("/v1/cluster", ClusterEndpoint(node.membership if node else None), methods=["GET"]))


@dataclass(frozen=True)
class ClusterEndpoint:
    """Without a `membership` the gateway is of no cluster."""

    membership: Membership | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        require_admin(caller())
        if (known := self.membership) is None:
            raise HTTPException(404, "this gateway is of no cluster; `agentmem up --cluster` starts a node of one")
        nodes = [to_json(node) for node in known.report()]
        answer = JSONResponse({"cluster_id": known.cluster_id, "node": known.own, "nodes": nodes})
        await answer(scope, receive, send)
