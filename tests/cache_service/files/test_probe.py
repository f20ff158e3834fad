"""GetStore: what a worker needs to find out whether it shares the store's disk."""

from pathlib import Path

import grpc
import pytest

from agentmem.v1 import cache_store_pb2 as pb
from tests.cache_service import kv
from tests.cache_service.conftest import Running, code, field_of, running


async def test_the_probe_holds_the_instance(store: Running) -> None:
    answer = await store.cache.GetStore(pb.GetStoreRequest())
    assert len(answer.instance) == 32 and kv.read(answer.probe_path) == answer.instance
    assert kv.mode(answer.probe_path) == 0o600 and Path(answer.probe_path).is_absolute()
    assert answer.staging_directory == str(store.data / "staging") and not answer.witness_seen


async def test_every_process_has_another_instance_and_says_so(data: Path) -> None:
    seen = []
    for _ in range(2):
        async with running(data) as store:
            answer = await store.cache.GetStore(pb.GetStoreRequest())
            opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key()))
            staged = await store.cache.StageBlocks(pb.StageBlocksRequest(namespace="default"))
            assert opened.instance == staged.instance == answer.instance == kv.read(answer.probe_path)
            seen.append(answer.instance)
    assert seen[0] != seen[1]


async def test_a_witness_is_seen_where_it_holds_the_instance(store: Running) -> None:
    instance = (await store.cache.GetStore(pb.GetStoreRequest())).instance
    witness = store.data / "staging" / "witness"

    async def seen() -> bool:
        return (await store.cache.GetStore(pb.GetStoreRequest(witness_path=str(witness)))).witness_seen

    assert not await seen()
    for content in (b"", bytes(32), instance[:-1], instance + b"\0"):
        kv.overwrite(str(witness), content)
        assert not await seen()
    kv.overwrite(str(witness), instance)
    assert await seen()


async def test_the_store_looks_nowhere_else(store: Running) -> None:
    instance = (await store.cache.GetStore(pb.GetStoreRequest())).instance
    outside = store.data.parent / "outside"
    kv.overwrite(str(outside), instance)
    (store.data / "staging" / "link").symlink_to(outside)
    for path in (str(outside), f"{store.data}/staging/../probe", "staging/witness", "\0"):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await store.cache.GetStore(pb.GetStoreRequest(witness_path=path))
        assert code(error) is grpc.StatusCode.INVALID_ARGUMENT and field_of(error) == "witness_path"
    answer = await store.cache.GetStore(pb.GetStoreRequest(witness_path=f"{store.data}/staging/link"))
    assert not answer.witness_seen, "a link may lead anywhere"
