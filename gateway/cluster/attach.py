"""A node of a cluster, where settings name one, and GET /v1/cluster."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.api.contract_json import to_json
from gateway.cluster.keys import ClusterKeys
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

    async def nodes(_: Request) -> JSONResponse:
        require_admin(caller())
        if node is None:
            raise HTTPException(404, "this gateway is of no cluster; `agentmem up --cluster` starts a node of one")
        known = node.membership
        listed = [to_json(each) for each in known.report()]
        return JSONResponse({"cluster_id": known.cluster_id, "node": known.own, "nodes": listed})

    parts.routes.append(Route("/v1/cluster", nodes, methods=["GET"]))
