"""Seeded damage of files that a worker hands in: refused with a reason, and nothing of them stays."""

from __future__ import annotations

import random
from pathlib import Path

import grpc

from agentmem.v1 import cache_store_pb2 as pb
from tests.cache_service.tiers.test_blocks import found, name, on_disk, publish, stage
from tests.faults.mutations import BLOCK_FILE

from . import kv
from .conftest import Running
from .invariants import check_directory

MUTATIONS = 200
BATCH = 8


async def test_a_damaged_file_is_refused_at_publication(store: Running) -> None:
    """Only the header is read here: the digest shows damage after it, at each load."""
    rng = random.Random(1)
    taken = 0
    for first in range(0, MUTATIONS, BATCH):
        headers = [kv.header([number, 0]) for number in range(first, first + BATCH)]
        staged = await stage(store, *map(name, headers))
        files, originals = [], {}
        for file, header in zip(staged, headers, strict=True):
            data = kv.content(header)
            stored = kv.write(file, header, data)
            mutated = rng.choice(BLOCK_FILE)(rng, data, kv.content(kv.header([first, 1])))
            Path(file.path).write_bytes(mutated)
            stored.size_bytes = len(mutated) if rng.random() < 0.8 else stored.size_bytes
            originals[header.chain_hash] = data
            files.append(stored)
        problem = None
        try:
            await publish(store, files)
        except grpc.aio.AioRpcError as error:
            problem = error
        told = (problem.details() or "") if problem else ""
        refused = {each for each in originals if each.hex() in told}
        assert problem is None or (problem.code() is grpc.StatusCode.DATA_LOSS and refused), told
        visible = {each.chain_hash: each for each in await found(store, *map(name, headers))}
        assert visible.keys() == originals.keys() - refused
        for chain_hash, seen in visible.items():
            wanted = originals[chain_hash]
            length = 8 + int.from_bytes(wanted[:8], "little")
            assert kv.read(seen.path)[:length] == wanted[:length] or _equal(kv.read(seen.path), wanted)
        taken += len(visible)
        for chain_hash in visible:
            quarantined = pb.FileName(kind=pb.FILE_KIND_BLOCK, chain_hash=chain_hash)
            await store.cache.QuarantineBlock(
                pb.QuarantineBlockRequest(namespace="default", name=quarantined, reason="digest")
            )
        check_directory(store)
    assert 0 < taken < MUTATIONS / 2
    assert not on_disk(store.data)
    assert store.metric("agentmem_cache_quarantined_total", reason="digest") == taken


def _equal(data: bytes, other: bytes) -> bool:
    return kv.parsed(data) == kv.parsed(other)
