"""GetStore: what a worker needs to find out whether it shares the store's disk."""

from pathlib import Path

from agentmem.v1 import cache_store_pb2 as pb
from tests.cache_service import kv
from tests.cache_service.conftest import Running


async def test_the_probe_holds_the_instance(store: Running) -> None:
    answer = await store.cache.GetStore(pb.GetStoreRequest())
    assert len(answer.instance) == 32 and kv.read(answer.probe_path) == answer.instance
    assert kv.mode(answer.probe_path) == 0o600 and Path(answer.probe_path).is_absolute()
    assert answer.staging_directory == str(store.data / "staging")
