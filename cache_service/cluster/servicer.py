"""ClusterService, which this node's gateway calls."""

import time
from dataclasses import dataclass
from typing import Any

import grpc

from agentmem.errors import InvalidArgument
from agentmem.v1 import cluster_pb2 as pb
from agentmem.v1 import cluster_pb2_grpc
from agentmem.validation import MAX_SETUP_BYTES, AgentKey, check_text
from cache_service.cluster import keys, nodes
from cache_service.cluster.membership import Membership, Report
from cache_service.ledger.ledgers import Ledgers

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(eq=False)
class ClusterServicer(cluster_pb2_grpc.ClusterServiceServicer):
    """Event loop."""

    _database: Ledgers
    _membership: Membership

    async def SyncNode(self, request: pb.SyncNodeRequest, context: Context) -> pb.SyncNodeResponse:
        running = frozenset(AgentKey.from_proto(key) for key in request.running)
        report = Report(request.ready, request.draining, request.load, tuple(request.models), running, time.monotonic())
        self._membership.report(report)
        return pb.SyncNodeResponse(
            name=self._membership.name,
            cluster_id=self._membership.cluster_id,
            nodes=self._membership.nodes(),
            keys_version=self._membership.keys_version,  # no older than leases of the nodes
        )

    async def GetKeys(self, request: pb.GetKeysRequest, context: Context) -> pb.GetKeysResponse:
        version, text = await self._database.read(keys.get)
        return pb.GetKeysResponse(version=version, keys=text)

    async def ShareSetup(self, request: pb.ShareSetupRequest, context: Context) -> pb.ShareSetupResponse:
        name = check_text("name", request.name)
        if len(request.value) > MAX_SETUP_BYTES:
            raise InvalidArgument("value", f"must have at most {MAX_SETUP_BYTES} bytes")
        kept = await self._database.write(nodes.share, name, request.value)
        return pb.ShareSetupResponse(value=kept)

    async def LocateAgent(self, request: pb.LocateAgentRequest, context: Context) -> pb.LocateAgentResponse:
        running_on, last_on = await self._database.read(nodes.locate, AgentKey.from_proto(request.key))
        return pb.LocateAgentResponse(running_on=running_on, last_on=last_on)
