"""Only nodes may use the node door's few RPCs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from agentmem import v1
from agentmem.channels import ClientTls, connect
from agentmem.process.cluster_tls import read_cluster_tls
from agentmem.v1 import cache_store_pb2, cache_store_pb2_grpc, model_pb2
from gateway.cluster.cli.certificates import authority, issue
from tests.gateway.cluster.world import HOST, World, cluster

SERVICES = {
    service.full_name: service
    for module in (*(getattr(v1, name) for name in ("inference_pb2", "agent_pb2", "model_pb2", "cache_store_pb2")),
                   *(getattr(v1, name) for name in ("cluster_pb2", "workflow_pb2")))
    for service in module.DESCRIPTOR.services_by_name.values()
}  # fmt: skip
SERVED = {
    "InferenceService": ["Generate", "Prefill", "Abort"],
    "AgentService": [
        *("GetAgent", "ListBlocks", "DeleteAgent", "TrimAgent", "ProbeAgent", "ForkAgent", "CreateSnapshot"),
        *("RestoreSnapshot", "SetTurnHints", "PrefetchAgent", "EvictAgent", "ExportAgent"),
    ],
    "CacheStoreService": ["OpenCache", "ReadBlock"],
}
"""RPCs that a node may call on another: none of the store's commits, and nothing of models."""
METHODS = [(service, method) for service in SERVICES for method in SERVICES[service].methods_by_name]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with cluster("a") as running:
        yield running


def client(world: World) -> ClientTls:
    return read_cluster_tls(world.certificates, HOST).client()


async def outcome(world: World, tls: ClientTls | None, service: str, name: str) -> grpc.StatusCode:
    """The status of an empty request at the node door."""
    method = SERVICES[service].methods_by_name[name]
    arity = "stream_unary" if method.client_streaming else "unary_stream" if method.server_streaming else "unary_unary"
    async with connect(world["a"].address, tls=tls) as channel:
        call = getattr(channel, arity)(f"/{service}/{name}")
        try:
            if arity == "unary_stream":
                [_ async for _ in call(b"", timeout=20)]
            else:
                await call(iter([b""]) if method.client_streaming else b"", timeout=20)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def test_only_what_nodes_ask_of_each_other_is_served(world: World) -> None:
    tls = client(world)
    served = {each: await outcome(world, tls, *each) for each in METHODS}
    refused = {each for each, status in served.items() if status is grpc.StatusCode.UNIMPLEMENTED}
    assert set(METHODS) - refused == {
        (f"agentmem.v1.{service}", name) for service in SERVED for name in SERVED[service]
    }


def strangers(world: World, directory: Path) -> dict[str, ClientTls | None]:
    ours = client(world)
    other = authority(directory / "other")
    theirs = read_cluster_tls(issue(other, directory / "other", HOST, 30), HOST)
    return {
        "without TLS": None,
        "without a certificate": ClientTls(ours.ca),
        "of another authority": ClientTls(ours.ca, theirs.cert, theirs.key),
    }


@pytest.mark.parametrize("who", ["without TLS", "without a certificate", "of another authority"])
async def test_a_stranger_is_not_heard(world: World, who: str, tmp_path: Path) -> None:
    tls = strangers(world, tmp_path)[who]
    for service, (name, *_) in SERVED.items():
        assert await outcome(world, tls, f"agentmem.v1.{service}", name) is grpc.StatusCode.UNAVAILABLE
    asked = [each for each in world["a"].worker.requests if not isinstance(each, model_pb2.ListModelsRequest)]
    assert asked == []


async def test_a_node_does_not_send_to_a_server_of_another_authority(world: World, tmp_path: Path) -> None:
    theirs = read_cluster_tls(issue(authority(tmp_path / "other"), tmp_path / "other", HOST, 30), HOST)
    tls = ClientTls(theirs.ca, client(world).cert, client(world).key)
    assert await outcome(world, tls, "agentmem.v1.AgentService", "GetAgent") is grpc.StatusCode.UNAVAILABLE


async def test_a_block_is_read_from_the_store(world: World) -> None:
    async with connect(world["a"].address, tls=client(world)) as channel:
        blocks = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
        parts = [part.chunk async for part in blocks.ReadBlock(cache_store_pb2.ReadBlockRequest())]
    assert parts == [b"block"]
