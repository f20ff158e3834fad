"""A file that failed verification is deleted, and nothing else is."""

import logging
from pathlib import Path

import pytest

from agentmem.v1 import agent_pb2
from agentmem.v1 import cache_store_pb2 as pb
from tests.cache_service import kv
from tests.cache_service.conftest import Running, wrong_field
from tests.cache_service.tiers.test_blocks import add, found, on_disk


async def test_a_damaged_file_is_deleted_and_logged(store: Running, caplog: pytest.LogCaptureFixture) -> None:
    block = await add(store, [1])
    (file,) = await found(store, block)
    request = pb.QuarantineBlockRequest(namespace="default", name=block, reason="digest")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await store.cache.QuarantineBlock(request)
    assert not await found(store, block) and on_disk(store.data) == []
    (logged,) = (record for record in caplog.records if record.getMessage().startswith("damaged file deleted"))
    said = str(logged.__dict__)
    assert all(part in said for part in (file.chain_hash.hex(), file.digest.hex(), "digest", str(file.size_bytes)))
    assert store.metric("agentmem_cache_quarantined_total", reason="digest") == 1
    await add(store, [1])
    assert await found(store, block), "a file that was computed again"


async def test_quarantine_of_a_vanished_file_forgets_its_row(store: Running) -> None:
    block = await add(store, [1])
    Path((await found(store, block))[0].path).unlink()
    for namespace, there in (("other", True), ("default", False), ("default", False)):
        request = pb.QuarantineBlockRequest(namespace=namespace, name=block, reason="io_error")
        await store.cache.QuarantineBlock(request)
        assert bool(await found(store, block)) == there
    assert on_disk(store.data) == []
    assert store.metric("agentmem_cache_quarantined_total", reason="io_error") == 0


async def test_a_file_that_was_replaced_meanwhile_is_not_deleted(store: Running) -> None:
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
    assert await wrong_field(store.cache.QuarantineBlock(request)) == "digest"
    request.digest = new.digest
    await store.cache.QuarantineBlock(request)
    assert not await found(store, block)
