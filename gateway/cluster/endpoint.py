"""GET /v1/cluster: the nodes, for admins."""

from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from gateway.api.contract_json import to_json
from gateway.cluster.node import Node
from gateway.edge.authorization import require_admin
from gateway.edge.callers import caller


@dataclass(frozen=True)
class ClusterEndpoint:
    """The endpoint as an ASGI application. Without a `node` the gateway is of no cluster."""

    node: Node | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        require_admin(caller())
        if self.node is None:
            raise HTTPException(404, "this gateway is of no cluster; `agentmem up --cluster` starts a node of one")
        nodes = [to_json(node) for node in self.node.nodes()]
        answer = JSONResponse({"cluster_id": self.node.cluster_id, "node": self.node.name, "nodes": nodes})
        await answer(scope, receive, send)
