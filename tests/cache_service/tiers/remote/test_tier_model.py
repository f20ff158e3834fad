"""Whatever agents do, in whatever order: rows and objects agree, each has a use, and the last agent leaves none."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from agentmem.kv.blockfile import FileKind
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.tiers.limits import DiskLimits
from cache_service.tiers.remote.contract import ObjectName
from cache_service.tiers.remote.s3 import object_key
from tests import s3
from tests.cache_service import kv
from tests.cache_service.conftest import Running
from tests.cache_service.tiers.test_warm import LIMIT, hold

from .tier import fetch, look, remote, settled

STARTS, STEPS = 3, 14
AGENTS = "abcd"
BLOCKS = range(8)

_USELESS = (
    "SELECT count(*) FROM objects AS o WHERE NOT EXISTS"
    " (SELECT 1 FROM object_refs AS r WHERE r.kind = o.kind AND r.chain_hash = o.chain_hash)"
)

_REFUSALS = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # the disk is small, and what is in quarantine or was used last stays
)


class Play:
    def __init__(self, store: Running, rng: random.Random) -> None:
        self.store = store
        self.rng = rng

    async def step(self) -> None:
        agent = self.rng.choice(AGENTS)
        often, seldom = (self.speak, self.evict), (self.fork, self.snapshot, self.trim, self.restore, self.delete)
        does: Callable[[str], Awaitable[object]] = self.rng.choice(
            (*often, *often, *seldom, self.fetch, self.quarantine)
        )
        await self.refusable(does(agent))

    async def refusable(self, work: Awaitable[object]) -> None:
        """Do something that may be refused."""
        try:
            await work
        except grpc.aio.AioRpcError as error:
            if error.code() not in _REFUSALS:
                raise

    async def speak(self, agent: str) -> None:
        opened = await self.store.open(agent)
        keep = self.rng.randint(0, len(opened.ledger.token_ids))
        turn = kv.turn([1, 2], opened.version, keep, kv.key(agent))
        version = (await self.store.cache.CommitTurn(turn)).version
        await hold(self.store, agent, self.rng.sample(BLOCKS, 2), version)

    async def evict(self, agent: str) -> None:
        tier = self.rng.choice([types_pb2.TIER_WARM, types_pb2.TIER_WARM, types_pb2.TIER_REMOTE])
        await self.store.agents.EvictAgent(agent_pb2.EvictAgentRequest(key=kv.key(agent), tier=tier))

    async def fork(self, agent: str) -> None:
        request = agent_pb2.ForkAgentRequest(key=kv.key(agent), new_agent_id=self.rng.choice(AGENTS))
        await self.store.agents.ForkAgent(request)

    async def snapshot(self, agent: str) -> None:
        await self.store.snapshot("s", agent)

    async def trim(self, agent: str) -> None:
        await self.store.trim(0, agent)

    async def restore(self, agent: str) -> None:
        await self.store.restore("s", agent)

    async def fetch(self, agent: str) -> None:
        await fetch(self.store, *BLOCKS)

    async def quarantine(self, agent: str) -> None:
        for number, file in (await look(self.store, *BLOCKS)).items():
            if file.path and number == self.rng.choice(BLOCKS):
                request = pb.QuarantineBlockRequest(namespace="default", reason="digest")
                request.name.kind, request.name.chain_hash = file.kind, file.chain_hash
                await self.store.cache.QuarantineBlock(request)

    async def delete(self, agent: str) -> None:
        await self.store.delete(kv.key(agent))


def check(data: Path, bucket: s3.Bucket) -> None:
    """Rows and objects are the same, and each has a use.

    The file of an upload may be evicted while it runs: then it is in no backlog, and its row is not there yet.
    """
    deadline = time.monotonic() + 20.0
    while True:
        with closing(sqlite3.connect(data / "store.db")) as connection:
            rows = connection.execute(
                "SELECT kind, chain_hash, digest, generation FROM objects WHERE present"
            ).fetchall()
            [useless] = connection.execute(_USELESS).fetchone()
        known = {f"kv/{object_key(ObjectName(FileKind(kind), *names))}" for kind, *names in rows}
        found = bucket.objects()
        if time.monotonic() > deadline or (known == found and not useless):
            break
        time.sleep(0.05)
    assert known == found
    assert not useless


@pytest.mark.slow("2")
@pytest.mark.parametrize("seed", range(4))
async def test_rows_and_objects_agree_and_the_last_agent_leaves_nothing(
    data: Path, bucket: s3.Bucket, seed: int
) -> None:
    rng = random.Random(seed)
    limits = DiskLimits(LIMIT // 2, 0, 0.91, 0.61)
    for _ in range(STARTS):
        async with remote(data, bucket, limits=limits) as store:
            play = Play(store, rng)
            for _ in range(STEPS):
                await play.step()
            await settled(store)
            await asyncio.to_thread(check, data, bucket)
            for file in (await look(store, *BLOCKS)).values():
                if not file.path:
                    request = pb.FetchBlocksRequest(namespace="default")
                    request.names.add(kind=file.kind, chain_hash=file.chain_hash)
                    await play.refusable(store.cache.FetchBlocks(request))
            assert not store.metric("agentmem_remote_fetches_total", result="missing")
    async with remote(data, bucket, limits=limits) as store:
        for agent in AGENTS:
            request = agent_pb2.DeleteAgentRequest(key=kv.key(agent), allow_missing=True)
            await store.agents.DeleteAgent(request)
        await settled(store)
        assert bucket.objects() == set()
