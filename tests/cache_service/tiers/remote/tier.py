"""A store with a remote tier, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agentmem.kv.object_location import Location
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from cache_service.store import DEFAULT_LIMITS
from cache_service.tiers.limits import DiskLimits
from cache_service.tiers.remote.contract import RemoteSettings
from tests import s3
from tests.cache_service import kv
from tests.cache_service.conftest import Running, running
from tests.cache_service.tiers.test_blocks import name

TIMEOUT = 2.0
"""Seconds of a request to the object store in tests, which wait for one that fails on purpose."""


def settings(bucket: s3.Bucket, endpoint: str = "", prefix: str = "kv") -> RemoteSettings:
    location = Location.parse(bucket.location(prefix))
    return RemoteSettings(location, endpoint or bucket.endpoint, timeout=TIMEOUT)


@asynccontextmanager
async def remote(
    data: Path, bucket: s3.Bucket, endpoint: str = "", limits: DiskLimits = DEFAULT_LIMITS
) -> AsyncIterator[Running]:
    async with running(data, limits, remote=settings(bucket, endpoint)) as store:
        yield store


async def until(condition: Callable[[], object]) -> None:
    while not await asyncio.to_thread(condition):
        await asyncio.sleep(0.02)


async def settled(store: Running) -> None:
    await until(
        lambda: not any(store.metric("agentmem_remote_backlog", operation=each) for each in ("uploads", "deletions"))
    )


async def look(store: Running, *blocks: int, namespace: str = "default") -> dict[int, pb.StoredFile]:
    numbers = {kv.header([n, 0], namespace).chain_hash: n for n in blocks}
    request = pb.OpenCacheRequest(key=kv.key("", namespace), block_hashes=list(numbers), peek=True)
    opened = await store.cache.OpenCache(request)
    return {numbers[bytes(file.chain_hash)]: file for file in opened.files}


async def tiers(store: Running, *blocks: int) -> dict[int, types_pb2.Tier.ValueType]:
    return {number: file.tier for number, file in (await look(store, *blocks)).items()}


async def fetch(store: Running, *blocks: int, namespace: str = "default") -> dict[int, pb.StoredFile]:
    numbers = {kv.header([n, 0], namespace).chain_hash: n for n in blocks}
    names = [name(kv.header([n, 0], namespace)) for n in blocks]
    response = await store.cache.FetchBlocks(pb.FetchBlocksRequest(namespace=namespace, names=names))
    return {numbers[bytes(file.chain_hash)]: file for file in response.files}


def keys(bucket: s3.Bucket, blocks: Sequence[int]) -> list[str]:
    """The keys of these blocks' objects, in order; every one must be there once."""
    found = bucket.objects()
    result = []
    for number in blocks:
        (key,) = (key for key in found if kv.header([number, 0]).chain_hash.hex() in key)
        result.append(key)
    return result
