"""KV that another node has: found where the agent spoke last, read from there, and checked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from agentmem.channels import NODE_OPTIONS, ChannelsByAddress, connect
from agentmem.kv import blockfile
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from benchmarks.proxy import Proxy
from cache_service.cluster import peers
from cache_service.cluster.ledger import SharedLedger
from cache_service.cluster.postgres.settings import Settings
from tests import s3
from tests.cache_service import kv
from tests.cache_service.cluster.several import Node, node, until
from tests.cache_service.tiers.remote.tier import fetch, settings, settled
from tests.cache_service.tiers.test_blocks import add, name


@pytest.fixture(autouse=True)
def by_sockets(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes reach each other's stores by their sockets: who may come in by the door of a node is its gateway's."""

    def reach(address: str) -> grpc.aio.Channel:
        return connect(f"unix:{data.with_name(address.partition('.')[0])}/store.sock")

    made = SharedLedger.__init__

    def reaching(self: SharedLedger, *arguments: object) -> None:
        made(self, *arguments)  # type: ignore[arg-type]
        self.connect = reach

    monkeypatch.setattr(SharedLedger, "__init__", reaching)


async def speaks(on: Node) -> None:
    await add(on.store, [1, 0], await on.store.commit([1]))


@pytest.fixture
async def spoken(two: tuple[Node, Node]) -> tuple[Node, Node]:
    """Nodes a and b; the agent's turn ran on a, which b knows."""
    a, b = two
    await seen(b, "a")
    await speaks(a)
    return two


async def opened(on: Node, *, peek: bool = False) -> list[pb.StoredFile]:
    """Return a node's files of the agent's block 1, as a turn asks for them."""
    request = pb.OpenCacheRequest(key=kv.key(), block_hashes=[kv.header([1, 0]).chain_hash], peek=peek)
    return [*(await on.store.cache.OpenCache(request)).files]


async def seen(by: Node, other: str) -> None:
    await until(lambda: by.membership.live(other))


async def test_a_turn_on_another_node_gets_the_blocks_of_the_one_before(spoken: tuple[Node, Node]) -> None:
    _, b = spoken
    (file,) = await opened(b)
    assert (file.tier, file.path, file.on_node) == (types_pb2.TIER_REMOTE, "", True)
    fetched = (await fetch(b.store, 1))[1]
    assert blockfile.digest(kv.read(fetched.path)) == fetched.digest == file.digest
    assert b.store.metric("agentmem_peer_fetches_total", result="warm") == 1
    assert b.store.metric("agentmem_peer_fetch_bytes_total") == file.size_bytes
    (here,) = await opened(b)
    assert (here.tier, here.path) == (types_pb2.TIER_WARM, fetched.path)


async def test_a_file_that_was_evicted_meanwhile_is_a_miss(spoken: tuple[Node, Node]) -> None:
    a, b = spoken
    assert await opened(b)
    quarantine = pb.QuarantineBlockRequest(namespace="default", name=name(kv.header([1, 0])), reason="digest")
    await a.store.cache.QuarantineBlock(quarantine)
    assert await fetch(b.store, 1) == {}
    assert b.store.metric("agentmem_peer_fetches_total", result="failed") == 1


async def test_bytes_that_are_others_than_were_announced_are_refused(spoken: tuple[Node, Node]) -> None:
    a, b = spoken
    (there,) = await opened(a)
    damaged = bytearray(Path(there.path).read_bytes())
    damaged[-1] ^= 1
    Path(there.path).chmod(0o600)
    Path(there.path).write_bytes(damaged)
    assert await opened(b)
    assert await fetch(b.store, 1) == {}
    assert not [*(b.store.data / "staging").iterdir()], "nothing is left of it"


async def test_a_probe_asks_no_other_node(spoken: tuple[Node, Node]) -> None:
    """As a node does that asks: two that take each other for the holder would ask each other for ever."""
    _, b = spoken
    assert await opened(b, peek=True) == []


async def test_a_node_that_is_gone_is_not_asked(data: Path, cluster: Settings) -> None:
    async with node(data, cluster, "b") as b:
        async with node(data, cluster, "a") as a:
            await seen(b, "a")
            await speaks(a)
        await until(lambda: not (membership := b.store.store.ledger.membership) or membership.live("a") is None)
        assert await opened(b) == []


async def test_what_no_node_gives_comes_from_the_object_store(data: Path, cluster: Settings, bucket: s3.Bucket) -> None:
    async with (
        node(data, cluster, "b", settings(bucket)) as b,
        node(data, cluster, "a", settings(bucket)) as a,
    ):
        await seen(b, "a")
        await speaks(a)
        await settled(a.store)
        assert await opened(b)
        (there,) = await opened(a)
        Path(there.path).unlink()
        assert (await fetch(b.store, 1))[1].digest == there.digest
        assert b.store.metric("agentmem_remote_fetches_total", result="warm") == 1


async def test_a_node_that_hangs_is_asked_once_and_the_object_store_instead(
    data: Path, cluster: Settings, bucket: s3.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine takes all that is sent, and nothing comes."""
    monkeypatch.setattr(peers, "_FIRST_SECONDS", 0.5)
    async with (
        node(data, cluster, "b", settings(bucket)) as b,
        node(data, cluster, "a", settings(bucket)) as a,
    ):
        proxy = Proxy(a.store.data / "store.sock")
        assert b.store.store.peers is not None
        b.store.store.peers._channels = ChannelsByAddress(
            lambda _: connect(f"127.0.0.1:{proxy.port}", options=NODE_OPTIONS)
        )
        await seen(b, "a")
        await speaks(a)
        await settled(a.store)
        (file,) = await opened(b)
        assert file.on_node
        with proxy.holding():
            assert (await fetch(b.store, 1))[1].digest == file.digest
            assert b.store.metric("agentmem_peer_fetches_total", result="failed") == 1
            assert b.store.metric("agentmem_remote_fetches_total", result="warm") == 1
            await b.store.evict()
            (again,) = await opened(b)
            assert again.tier == types_pb2.TIER_REMOTE and not again.on_node, "it was left alone"
        monkeypatch.setattr(peers, "_REST_SECONDS", 0.0)
        b.store.store.peers._resting.clear()
        async with asyncio.timeout(30):
            while not (await opened(b))[0].on_node:
                await asyncio.sleep(0.1)
        assert (await fetch(b.store, 1))[1].digest == file.digest
        assert b.store.metric("agentmem_peer_fetches_total", result="warm") == 1
        proxy.close()
