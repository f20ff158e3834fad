"""CacheStoreService over a real socket."""

from agentmem.v1 import cache_store_pb2 as pb
from tests.cache_service import kv
from tests.cache_service.conftest import Running


async def test_a_turn_is_read_back_with_its_files(store: Running) -> None:
    opened = await store.cache.OpenCache(pb.OpenCacheRequest(key=kv.key()))
    assert not opened.version.uid and not opened.HasField("ledger")

    committed = await store.cache.CommitTurn(kv.turn([11, 12, 13]))
    header = kv.header([11, 12, 13])
    name = pb.FileName(kind=pb.FILE_KIND_BLOCK, chain_hash=header.chain_hash)
    staged = await store.cache.StageBlocks(pb.StageBlocksRequest(namespace="default", names=[name]))
    file = kv.write(staged.files[0], header)
    published = await store.cache.PublishBlocks(
        pb.PublishBlocksRequest(
            key=kv.key(), version=committed.version, files=[file], references=[name], fingerprint=kv.FINGERPRINT
        )
    )
    assert (published.published, published.dropped) == (1, 0)

    opened = await store.cache.OpenCache(
        pb.OpenCacheRequest(key=kv.key(), block_hashes=[header.chain_hash], window_hashes=[header.chain_hash])
    )
    assert opened.version == committed.version
    assert list(opened.ledger.token_ids) == [11, 12, 13]
    assert opened.ledger.text == b"111213"
    assert list(opened.ledger.offsets) == [2, 4, 6]
    (found,) = opened.files
    assert kv.size(found.path) == found.size_bytes == file.size_bytes
    assert found.digest == file.digest
    await store.cache.QuarantineBlock(pb.QuarantineBlockRequest(namespace="default", name=name, reason="digest"))
    opened = await store.cache.OpenCache(
        pb.OpenCacheRequest(key=kv.key(), known=opened.version, block_hashes=[header.chain_hash])
    )
    assert not opened.files and not opened.HasField("ledger")
