"""What a gateway tells of itself and of those behind it."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from agentmem.channels import connect
from agentmem.v1 import agent_pb2, agent_pb2_grpc
from gateway.app import Gateway
from gateway.metrics import GatewayMetrics

from .running import eventually
from .scripted import ScriptedWorker
from .secured import add_key, secured


async def test_its_peers_are_up_while_they_serve(worker: ScriptedWorker, gateway: Gateway) -> None:
    def up(peer: str) -> float | None:
        return gateway.metrics.registry.get_sample_value("agentmem_peer_up", {"peer": peer})

    assert gateway.metrics.registry.get_sample_value("agentmem_ready") == 1
    await eventually(lambda: up("worker") == 1)
    assert up("store") == 0
    await worker.server.set_serving(False)
    await eventually(lambda: up("worker") == 0)
    await worker.server.set_serving(True)
    await eventually(lambda: up("worker") == 1)
    await worker.stop()
    await eventually(lambda: up("worker") == 0)


async def test_who_has_no_key_is_counted(worker: ScriptedWorker, run_dir: Path) -> None:
    add_key(run_dir)
    async with secured(run_dir) as gateway, connect(gateway.addresses["grpc"]) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await agent_pb2_grpc.AgentServiceStub(channel).ListAgents(agent_pb2.ListAgentsRequest())
        rpc = {"grpc_type": "unary", "grpc_service": "agentmem.v1.AgentService", "grpc_method": "ListAgents"}
        value = gateway.metrics.registry.get_sample_value
        # Counted when the handler has ended, of which the caller may hear before.
        await eventually(lambda: value("grpc_server_handled_total", {**rpc, "grpc_code": "UNAUTHENTICATED"}) == 1)
        assert value("grpc_server_handled_total", {**rpc, "grpc_code": "OK"}) == 0


def test_series_that_can_be_known_begin_at_zero() -> None:
    found = {
        (sample.name, *sample.labels.values())
        for family in GatewayMetrics().registry.collect()
        for sample in family.samples
        if sample.value == 0
    }
    assert ("agentmem_gateway_agents_resolved_total", "forked") in found
    assert ("agentmem_gateway_num_requests_running", "grpc") in found
