"""A store on a Unix socket, in the test's own event loop: real files, real SQLite, real gRPC."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from agentmem.channels import connect
from agentmem.errors import AgentmemError, InvalidArgument, from_rpc
from agentmem.process.server import GrpcServer
from agentmem.v1 import agent_pb2, agent_pb2_grpc, cache_store_pb2, cache_store_pb2_grpc, types_pb2
from cache_service.own_ledger import OwnLedger
from cache_service.store import DEFAULT_LIMITS, NO_REMOTE_TIER, Store
from cache_service.tiers.limits import DiskLimits
from cache_service.tiers.quotas import NO_QUOTAS, Quotas
from cache_service.tiers.remote.contract import RemoteSettings
from tests import s3, scratch

from . import kv

if TYPE_CHECKING:
    from cache_service.cluster.postgres.database import Postgres
    from cache_service.cluster.postgres.settings import Settings
    from tests.postgres import Server

ENGINES = ["sqlite", *(["postgres"] if find_spec("cache_service.cluster") else [])]


@dataclass(frozen=True)
class Running:
    data: Path
    registry: CollectorRegistry
    store: Store
    cache: cache_store_pb2_grpc.CacheStoreServiceAsyncStub
    agents: agent_pb2_grpc.AgentServiceAsyncStub

    async def open(self, agent: str = "ada", *, peek: bool = False) -> cache_store_pb2.OpenCacheResponse:
        return await self.cache.OpenCache(cache_store_pb2.OpenCacheRequest(key=kv.key(agent), peek=peek))

    async def commit(
        self, tokens: list[int], agent: str = "ada", keep: int | None = None, **fields: Any
    ) -> types_pb2.AgentVersion:
        """Commit a turn after the present state, or after its first tokens."""
        opened = await self.open(agent)
        kept = len(opened.ledger.token_ids) if keep is None else keep
        return (await self.cache.CommitTurn(kv.turn(tokens, opened.version, kept, kv.key(agent), **fields))).version

    async def tokens(self, agent: str = "ada") -> list[int]:
        ledger = (await self.open(agent, peek=True)).ledger
        assert ledger.text == b"".join(str(token).encode() for token in ledger.token_ids)
        assert all(turn.end_token <= len(ledger.token_ids) for turn in ledger.turns)
        return list(ledger.token_ids)

    async def agent(self, agent: str = "ada") -> agent_pb2.Agent:
        return (await self.agents.GetAgent(agent_pb2.GetAgentRequest(key=kv.key(agent)))).agent

    async def fork(self, new: str, agent: str = "ada", **fields: Any) -> agent_pb2.Agent:
        request = agent_pb2.ForkAgentRequest(key=kv.key(agent), new_agent_id=new, **fields)
        return (await self.agents.ForkAgent(request)).agent

    async def trim(self, keep: int, agent: str = "ada", **fields: Any) -> agent_pb2.Agent:
        request = agent_pb2.TrimAgentRequest(key=kv.key(agent), keep_tokens=keep, **fields)
        return (await self.agents.TrimAgent(request)).agent

    async def snapshot(self, name: str, agent: str = "ada") -> agent_pb2.Snapshot:
        request = agent_pb2.CreateSnapshotRequest(key=kv.key(agent), name=name)
        return (await self.agents.CreateSnapshot(request)).snapshot

    async def restore(self, name: str, agent: str = "ada") -> agent_pb2.Agent:
        request = agent_pb2.RestoreSnapshotRequest(key=kv.key(agent), name=name)
        return (await self.agents.RestoreSnapshot(request)).agent

    async def forget(self, name: str, agent: str = "ada") -> None:
        await self.agents.DeleteSnapshot(agent_pb2.DeleteSnapshotRequest(key=kv.key(agent), name=name))

    async def evict(self, agent: str = "ada", tier: types_pb2.Tier.ValueType = types_pb2.TIER_WARM) -> int:
        return (await self.agents.EvictAgent(agent_pb2.EvictAgentRequest(key=kv.key(agent), tier=tier))).freed_bytes

    async def delete(self, key: types_pb2.AgentKey | None = None) -> agent_pb2.DeleteAgentResponse:
        return await self.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=key or kv.key()))

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@asynccontextmanager
async def running(
    data: Path,
    limits: DiskLimits = DEFAULT_LIMITS,
    quotas: Quotas = NO_QUOTAS,
    remote: RemoteSettings = NO_REMOTE_TIER,
    cluster: Settings | None = None,
) -> AsyncIterator[Running]:
    registry = CollectorRegistry()
    home: Any = OwnLedger
    if cluster is not None:
        from cache_service.cluster.ledger import SharedLedger

        home = lambda directory: SharedLedger(directory, cluster, f"{cluster.node}.local:1")  # noqa: E731
    store = await asyncio.to_thread(Store, data, registry, limits, quotas, remote, home)
    server = GrpcServer(f"unix:{data}/store.sock", store.services)
    await server.start()
    try:
        async with connect(server.address) as channel:
            yield Running(
                data,
                registry,
                store,
                cache_store_pb2_grpc.CacheStoreServiceStub(channel),
                agent_pb2_grpc.AgentServiceStub(channel),
            )
    finally:
        await server.stop(1)
        await store.disconnect()
        await asyncio.to_thread(store.close)


@pytest.fixture
def data() -> Iterator[Path]:
    parent = Path(tempfile.mkdtemp(dir=scratch.FOLDER, prefix="am"))
    yield parent / "d"
    shutil.rmtree(parent)


@pytest.fixture
def proxy(bucket: s3.Bucket) -> Iterator[s3.Proxy]:
    with s3.proxy(bucket.endpoint) as proxy:
        yield proxy


@pytest.fixture
async def store(data: Path) -> AsyncIterator[Running]:
    async with running(data) as store:
        yield store


@pytest.fixture
def cluster(postgres_server: Server) -> Iterator[Settings]:
    """A cluster of one node, so far, on PostgreSQL."""
    from cache_service.cluster.postgres.settings import Settings

    schema = f"cluster {os.getpid()} {next(_numbers)}"
    yield Settings(postgres_server.conninfo, schema, "a", "nothing")
    with postgres_server.connect() as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())


@pytest.fixture
def postgres_settings(cluster: Settings) -> Settings:
    return replace(cluster, node="", writers=4, readers=2)


@pytest.fixture
def postgres(postgres_settings: Settings) -> Iterator[Postgres]:
    from cache_service.cluster.postgres.database import Postgres

    postgres = Postgres(postgres_settings)
    postgres.open()
    yield postgres
    postgres.close()


_numbers = count()


async def refused(call: Awaitable[object]) -> AgentmemError:
    """Make a call that has to be refused; return the contract's error."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return from_rpc(error.value)


async def fails(call: Awaitable[object], status: str) -> str:
    """Make a call that has to end with this status; return what it says."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    assert error.value.code().name == status, error.value.details()
    return error.value.details() or ""


async def wrong_field(call: Awaitable[object]) -> str:
    """Make a call that has to be refused as INVALID_ARGUMENT; return the field that is named."""
    error = await refused(call)
    assert isinstance(error, InvalidArgument)
    return error.field
