"""With what an agent's KV was computed, as OpenCache says: of its state, wherever that came from and wherever it is."""

from pathlib import Path

from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from tests import s3
from tests.cache_service import kv
from tests.cache_service.conftest import Running, running
from tests.cache_service.streams import arrive
from tests.cache_service.tiers.remote.tier import remote, settled
from tests.cache_service.tiers.test_blocks import WINDOW, found, name, publish, stage

OLD, NEW = "0" * 16, "1" * 16


async def fingerprint(store: Running, agent: str = "ada") -> str:
    """Return OpenCache's KV fingerprint, which one that knows the ledger and only looks gets, too."""
    opened = await store.open(agent)
    request = pb.OpenCacheRequest(key=kv.key(agent), known=opened.version, peek=True)
    again = await store.cache.OpenCache(request)
    assert not again.HasField("ledger")
    assert again.kv_fingerprint == opened.kv_fingerprint
    return opened.kv_fingerprint


async def speak(store: Running, said: str, tokens: list[int], agent: str = "ada", keep: int | None = None) -> None:
    """A turn whose KV, a block and a window, a model with the fingerprint `said` has computed."""
    version = await store.commit(tokens, agent, keep)
    header = kv.header(tokens, fingerprint=said)
    both = [name(header), name(header, WINDOW)]
    files = [kv.write(file, header) for file in await stage(store, *both)]
    await publish(store, files, version, both, kv.key(agent), said)


async def test_it_is_that_of_the_state_that_was_published_last(store: Running) -> None:
    assert await fingerprint(store) == "", "nobody is there"
    await store.commit([1])
    assert await fingerprint(store) == "", "nothing was computed"
    await speak(store, OLD, [2])
    assert await fingerprint(store) == OLD
    await store.commit([3])
    assert await fingerprint(store) == OLD, "what follows is not written yet"
    await speak(store, NEW, [4])
    assert await fingerprint(store) == NEW
    assert (await store.open("")).kv_fingerprint == ""
    assert await fingerprint(store, "eve") == ""
    await store.delete()
    assert await fingerprint(store) == ""


async def test_what_was_evicted_or_is_damaged_has_none(store: Running) -> None:
    await speak(store, OLD, [1])
    await store.fork("eve")
    await store.evict()
    assert (await fingerprint(store), await fingerprint(store, "eve")) == ("", OLD), "each has lost only its own"
    header = kv.header([1], fingerprint=OLD)
    for file in (name(header), name(header, WINDOW)):
        assert await fingerprint(store, "eve") == OLD, "one file is there"
        await store.cache.QuarantineBlock(
            pb.QuarantineBlockRequest(namespace="default", name=file, reason="a flipped bit")
        )
    assert not await found(store, name(header))
    assert await fingerprint(store, "eve") == ""


async def test_the_object_store_counts_where_there_is_one(data: Path, bucket: s3.Bucket) -> None:
    async with remote(data, bucket) as store:
        await speak(store, OLD, [1])
        await settled(store)
        await store.evict()
        assert not kv_files(store)
        assert await fingerprint(store) == OLD, "it is there, only slower"
        await store.fork("eve")
        assert await fingerprint(store, "eve") == OLD
    async with running(data) as store:
        assert await fingerprint(store) == "", "nothing comes from an object store that nobody asks"
    async with remote(data, bucket) as store:
        await store.evict(tier=types_pb2.TIER_REMOTE)
        assert await fingerprint(store) == ""


def kv_files(store: Running) -> list[str]:
    return [str(path) for folder in ("blocks", "windows") for path in (store.data / folder).rglob("*.safetensors")]


async def test_a_state_of_another_nodes_files_has_its_own_when_it_is_published(store: Running) -> None:
    await speak(store, OLD, [1])
    version = await store.commit([2])
    header = kv.header([2], fingerprint=NEW)
    await arrive(store, header, version=version, fingerprint=NEW)
    assert await fingerprint(store) in (OLD, NEW)
    await publish(store, [], version, [name(header)])
    assert await fingerprint(store) == NEW
