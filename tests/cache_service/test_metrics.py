"""The metrics page of a store that has something to show."""

from agentmem.v1 import cache_store_pb2 as pb

from . import kv
from .conftest import Running
from .test_blocks import add, found, name, stage

DISK = "agentmem_cache_disk_bytes"


async def test_sizes_and_counts_follow_the_directory(store: Running) -> None:
    version = (await store.cache.CommitTurn(kv.turn([1]))).version
    await store.cache.CommitTurn(kv.turn([1], agent=kv.key("eve")))
    block = await add(store, [1], version)
    (file,) = await found(store, block)
    (staged,) = await stage(store, name(kv.header([2])))
    kv.overwrite(staged.path, b"half")
    assert store.metric(DISK, kind="blocks") == file.size_bytes
    assert store.metric(DISK, kind="windows") == 0
    assert store.metric(DISK, kind="staging") == 4
    assert (store.metric(DISK, kind="ledger") or 0) > 0
    assert store.metric("agentmem_cache_agents", tier="warm") == 1
    assert store.metric("agentmem_cache_agents", tier="none") == 1

    await store.cache.QuarantineBlock(pb.QuarantineBlockRequest(namespace="default", name=block, reason="?"))
    assert store.metric(DISK, kind="blocks") == 0
    assert (store.metric(DISK, kind="quarantine") or 0) > file.size_bytes
    assert store.metric("agentmem_cache_quarantined_total", reason="other") == 1
    assert store.metric("agentmem_cache_quarantined_total", reason="digest") == 0
    assert store.metric("agentmem_cache_agents", tier="none") == 2


async def test_every_metric_has_a_help_text_and_no_agent_in_a_label(store: Running) -> None:
    await store.cache.CommitTurn(kv.turn([1], agent=kv.key("somebody")))
    for family in store.registry.collect():
        assert family.name.startswith(("agentmem_", "grpc_server_", "process_")) and family.documentation
        labels = {label for sample in family.samples for label in sample.labels}
        assert labels <= {"kind", "tier", "reason", "service", "version"}
