"""Gateways as nodes of a cluster, each before a scripted worker and a scripted store, with real certificates."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from agentmem.channels import connect
from agentmem.errors import Unavailable
from agentmem.process.server import GrpcServer
from agentmem.rpcs import rpc_of
from agentmem.v1 import (
    cache_store_pb2,
    cache_store_pb2_grpc,
    cluster_pb2,
    cluster_pb2_grpc,
    inference_pb2,
    model_pb2,
    types_pb2,
)
from gateway.app import Gateway
from gateway.cluster.cli.certificates import authority, issue
from gateway.edge.key_file import render
from gateway.edge.keys import ApiKey
from gateway.upstream import ChannelWorker
from tests import scratch
from tests.gateway.running import ANY_PORT, eventually, settings
from tests.gateway.scripted import ScriptedWorker
from tests.system.stack import free_port

HOST = "127.0.0.1"


class SharedLedger:
    def __init__(self) -> None:
        self.nodes: dict[str, cluster_pb2.Node] = {}
        self.running: dict[str, list[types_pb2.AgentKey]] = {}
        self.lease = 10.0
        self.at: dict[str, cluster_pb2.LocateAgentResponse] = {}
        self.keys = cluster_pb2.GetKeysResponse(version="none")
        """Callers', as all stores have them."""

    def has_keys(self, *keys: ApiKey) -> None:
        self.keys = cluster_pb2.GetKeysResponse(version=f"of {[key.id for key in keys]}", keys=render(keys).encode())


class ScriptedStore(cluster_pb2_grpc.ClusterServiceServicer, cache_store_pb2_grpc.CacheStoreServiceServicer):
    """The store of one node: a real server. Where it is `away`, it does not answer."""

    def __init__(self, socket: Path, name: str, address: str, ledger: SharedLedger) -> None:
        self.name, self.address, self.ledger = name, address, ledger
        self.away = False
        self.read_keys = 0
        self.says_ready = False
        self.heard_ready = False
        register = cluster_pb2_grpc.add_ClusterServiceServicer_to_server
        blocks = cache_store_pb2_grpc.add_CacheStoreServiceServicer_to_server
        services: list[Any] = [
            ("agentmem.v1.ClusterService", register, self),
            ("agentmem.v1.CacheStoreService", blocks, self),
        ]
        self.server = GrpcServer(f"unix:{socket}", services)

    async def SyncNode(self, request: Any, context: Any) -> cluster_pb2.SyncNodeResponse:
        if self.away:
            raise Unavailable("the database does not answer")
        self.heard_ready = request.ready
        node = cluster_pb2.Node(
            name=self.name,
            address=self.address,
            ready=request.ready or self.says_ready,
            draining=request.draining,
            load=request.load,
            models=request.models,
            version="1",
            epoch=1,
        )
        node.expires_in.FromMilliseconds(round(self.ledger.lease * 1000))
        self.ledger.nodes[self.name] = node
        self.ledger.running[self.name] = list(request.running)
        nodes = [self.ledger.nodes[name] for name in sorted(self.ledger.nodes)]
        return cluster_pb2.SyncNodeResponse(
            name=self.name, cluster_id="c1", nodes=nodes, keys_version=self.ledger.keys.version
        )

    async def GetKeys(self, request: Any, context: Any) -> cluster_pb2.GetKeysResponse:
        self.read_keys += 1
        return self.ledger.keys

    async def LocateAgent(self, request: Any, context: Any) -> cluster_pb2.LocateAgentResponse:
        if self.away:
            raise Unavailable("the database does not answer")
        return self.ledger.at.get(request.key.agent_id, cluster_pb2.LocateAgentResponse())

    async def OpenCache(self, request: Any, context: Any) -> cache_store_pb2.OpenCacheResponse:
        return cache_store_pb2.OpenCacheResponse()

    async def ReadBlock(self, request: Any, context: Any) -> AsyncIterator[cache_store_pb2.ReadBlockResponse]:
        yield cache_store_pb2.ReadBlockResponse(chunk=b"block")


class TestNode:
    def __init__(
        self, name: str, run_dir: Path, port: int, certificates: Path, ledger: SharedLedger, **changed: Any
    ) -> None:
        self.name, self.run_dir = name, run_dir
        self.address = f"{HOST}:{port}"
        self.worker = ScriptedWorker(f"{run_dir}/worker.sock")
        self.worker.models = [
            model_pb2.Model(model_id="demo", is_default=True, state=model_pb2.MODEL_STATE_LOADED, fingerprint="f1")
        ]
        self.store = ScriptedStore(run_dir / "store.sock", name, self.address, ledger)
        own = {
            "node": name,
            "advertise": self.address,
            "node_listen": self.address,
            "cluster_tls": certificates,
            "metrics": ANY_PORT,
        }
        self.gateway = Gateway(settings(run_dir, **{**own, **changed}))
        self._left = False
        self._vanishing: asyncio.Future[None] | None = None

    async def start(self) -> None:
        await self.store.server.start()
        await self.store.server.set_serving(True)
        await self.worker.start()
        await self.gateway.start()

    async def leave(self) -> None:
        """Drain, as at SIGTERM."""
        if not self._left:
            self._left = True
            await self.gateway.stop()

    async def end(self) -> None:
        async with AsyncExitStack() as ending:
            ending.push_async_callback(self.store.server.stop, 0)
            ending.push_async_callback(self.worker.stop)
            if self._vanishing is not None:
                ending.push_async_callback(asyncio.wait, {self._vanishing})
            await self.leave()

    async def vanish(self) -> None:
        """In a handler of the worker: end the worker, not from within, for that would cancel the end itself."""
        self._vanishing = asyncio.ensure_future(self.worker.server.stop(0))
        await asyncio.Event().wait()

    def channel(self, key: str = "") -> grpc.aio.Channel:
        return connect(self.gateway.addresses["grpc"], key=key)

    @property
    def http(self) -> str:
        return f"http://{self.gateway.addresses['http']}"

    @property
    def ready(self) -> int:
        assert self.gateway is not None
        return sum(node.ready for node in self.gateway.parts.cluster.membership.nodes())


class World:
    def __init__(self, nodes: list[TestNode], ledger: SharedLedger, certificates: Path) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.ledger = ledger
        self.certificates = certificates

    def __getitem__(self, name: str) -> TestNode:
        return self.nodes[name]

    def says(self, agent: str, *, running_on: str = "", last_on: str = "") -> None:
        self.ledger.at[agent] = cluster_pb2.LocateAgentResponse(running_on=running_on, last_on=last_on)

    def turns(self, agent: str = "") -> dict[str, int]:
        return {
            name: sum(request.key.agent_id == agent or not agent for request in node.worker.generated)
            for name, node in self.nodes.items()
        }


@asynccontextmanager
async def cluster(*names: str, **changed: Any) -> AsyncIterator[World]:
    """Nodes that know each other, while the block runs; their gateways have changed settings."""
    root = Path(tempfile.mkdtemp(dir=scratch.FOLDER, prefix="am"))
    try:
        async with AsyncExitStack() as stack:
            certificates = issue(authority(root / "tls"), root / "tls", HOST, 30)
            ledger = SharedLedger()
            ports = [free_port() for _ in names]
            nodes = [
                TestNode(name, root / name, port, certificates, ledger, **changed)
                for name, port in zip(names, ports, strict=True)
            ]
            for node in nodes:
                node.run_dir.mkdir()
                stack.push_async_callback(node.end)
                await node.start()
            world = World(nodes, ledger, certificates)
            for node in nodes:
                await eventually(lambda node=node: node.ready == len(names))  # type: ignore[misc]
            yield world
    finally:
        shutil.rmtree(root)


def turn(agent: str = "ada", **more: Any) -> inference_pb2.GenerateRequest:
    key = types_pb2.AgentKey(agent_id=agent, model_id="demo")
    return inference_pb2.GenerateRequest(key=key, prompt="hi", **more)


async def ask(world: World, at: str, request: Any) -> Any:
    """Call a node's gRPC door; the answer, or a stream's messages. Raises AgentmemError."""
    async with world[at].channel() as channel:
        door = ChannelWorker(channel)
        if rpc_of(request).method.server_streaming:
            return [message async for message in door.stream(request, 30)]
        return await door.call(request, 30)
