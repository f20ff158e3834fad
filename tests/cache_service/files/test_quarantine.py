"""Quarantine: what failed is out of use and kept with its reason, and nothing else is."""

import json

import grpc
import pytest

from agentmem.kv import blockfile
from agentmem.v1 import agent_pb2
from agentmem.v1 import cache_store_pb2 as pb
from tests.cache_service import kv
from tests.cache_service.conftest import Running, field_of
from tests.cache_service.tiers.test_blocks import add, found, on_disk


async def test_quarantine_keeps_the_file_and_the_reason(store: Running) -> None:
    block = await add(store, [1])
    (file,) = await found(store, block)
    request = pb.QuarantineBlockRequest(namespace="default", name=block, reason="digest")
    for _ in range(2):
        await store.cache.QuarantineBlock(request)
    assert not await found(store, block)
    (kept,) = on_disk(store.data)
    assert kept.startswith("quarantine/") and blockfile.digest(kv.read(store.data / kept)) == file.digest
    reason = json.loads(kv.read(store.data / kept.replace(".safetensors", ".reason.json")))
    assert reason["reason"] == "digest" and reason["size_bytes"] == file.size_bytes and reason["time"] > 0
    assert store.metric("agentmem_cache_quarantined_total", reason="digest") == 1
    await add(store, [1])
    assert await found(store, block), "a file that was computed again"


async def test_quarantine_of_a_vanished_file_forgets_its_row(store: Running) -> None:
    block = await add(store, [1])
    kv.delete((await found(store, block))[0].path)
    for namespace, there in (("other", True), ("default", False), ("default", False)):
        request = pb.QuarantineBlockRequest(namespace=namespace, name=block, reason="io_error")
        await store.cache.QuarantineBlock(request)
        assert bool(await found(store, block)) == there
    assert on_disk(store.data) == []
    assert store.metric("agentmem_cache_quarantined_total", reason="io_error") == 0, "nothing is kept"


async def test_a_file_that_was_replaced_meanwhile_is_not_quarantined(store: Running) -> None:
    block = await add(store, [1])
    (old,) = await found(store, block)
    await store.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=kv.key(), allow_missing=True))
    await add(store, [1])
    (new,) = await found(store, block)
    assert new.digest != old.digest
    request = pb.QuarantineBlockRequest(namespace="default", name=block, reason="digest", digest=old.digest)
    await store.cache.QuarantineBlock(request)
    assert await found(store, block) == [new]
    request.digest = b"short"
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await store.cache.QuarantineBlock(request)
    assert field_of(error) == "digest"
    request.digest = new.digest
    await store.cache.QuarantineBlock(request)
    assert not await found(store, block)
