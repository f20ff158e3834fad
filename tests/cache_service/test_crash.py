"""kill -9 at any moment, and a failing disk: what was acknowledged is there exactly, the rest wholly or not at all."""

from __future__ import annotations

import asyncio
import random
import resource
import sys
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from agentmem.kv import blockfile
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc, types_pb2
from tests.full_matrix import FULL

from . import kv
from .conftest import running
from .process import ready

KILLS_PER_STORE = 7 if FULL else 4
STORES = 3


@dataclass
class Model:
    """What one client knows: the acknowledged state, and the turn that it was waiting for when the store died."""

    rng: random.Random
    version: types_pb2.AgentVersion = field(default_factory=types_pb2.AgentVersion)
    tokens: list[int] = field(default_factory=list)
    pending: pb.CommitTurnRequest | None = None
    commits: int = 0

    def next_turn(self) -> pb.CommitTurnRequest:
        keep = len(self.tokens) if self.rng.random() < 0.7 else self.rng.randint(0, len(self.tokens))
        tokens = [self.rng.randrange(2**32) for _ in range(self.rng.randint(0, 400))]
        return kv.turn(tokens, self.version, keep, request_id=f"turn {self.commits}", request_digest=b"d")

    def committed(self, turn: pb.CommitTurnRequest, version: types_pb2.AgentVersion) -> None:
        assert version.version == self.version.version + 1
        self.version = version
        self.tokens = [*self.tokens[: turn.keep_tokens], *turn.token_ids]
        self.pending = None
        self.commits += 1


async def work(store: cache_store_pb2_grpc.CacheStoreServiceAsyncStub, model: Model) -> None:
    """Commit turns and publish their blocks until the store is gone."""
    try:
        while True:
            model.pending = model.next_turn()
            model.committed(model.pending, (await store.CommitTurn(model.pending)).version)
            header = kv.header([model.commits])
            name = pb.FileName(kind=pb.FILE_KIND_BLOCK, chain_hash=header.chain_hash)
            staged = await store.StageBlocks(pb.StageBlocksRequest(namespace="default", names=[name]))
            files = [kv.write(file, header) for file in staged.files]
            await store.PublishBlocks(
                pb.PublishBlocksRequest(
                    key=kv.key(), version=model.version, files=files, references=[name], fingerprint=kv.FINGERPRINT
                )
            )
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise


async def check(store: cache_store_pb2_grpc.CacheStoreServiceAsyncStub, model: Model, data: Path) -> None:
    """The acknowledged state is there, or the one that the pending turn makes; every row has its whole file."""
    hashes = [kv.header([number]).chain_hash for number in range(model.commits + 2)]
    opened = await store.OpenCache(pb.OpenCacheRequest(key=kv.key(), block_hashes=hashes))
    if opened.version != model.version:
        assert model.pending is not None
        model.committed(model.pending, opened.version)
    assert list(opened.ledger.token_ids) == model.tokens
    assert opened.ledger.text == b"".join(str(token).encode() for token in model.tokens)
    assert len(opened.ledger.offsets) == len(model.tokens)
    for file in opened.files:
        assert blockfile.digest(kv.read(file.path)) == file.digest
    published = {str(path) for folder in ("blocks", "windows") for path in (data / folder).rglob("*.safetensors")}
    assert {file.path for file in opened.files} == published and list((data / "staging").iterdir()) == []
    if model.pending is not None:
        answer = await store.CommitTurn(model.pending)
        assert not answer.HasField("replayed")
        model.committed(model.pending, answer.version)
    elif model.commits:
        again = pb.OpenCacheRequest(key=kv.key(), request_id=f"turn {model.commits - 1}")
        assert (await store.OpenCache(again)).turn.version == model.version


async def crash_often(data: Path, seed: int) -> int:
    model = Model(random.Random(seed))
    for _ in range(KILLS_PER_STORE):
        async with ready(data) as (process, channel):
            store = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
            await check(store, model, data)
            working = asyncio.create_task(work(store, model))
            await asyncio.sleep(model.rng.uniform(0, 0.25))
            process.kill()
            await working
    async with running(data) as last:
        await check(last.cache, model, data)
    return model.commits


@pytest.mark.slow
async def test_kill_9_in_the_middle_of_commits(data: Path) -> None:
    commits = await asyncio.gather(*(crash_often(data.with_name(f"d{seed}"), seed) for seed in range(STORES)))
    assert min(commits) > 0


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process can be set on Linux only")
async def test_a_disk_that_fails_leaves_the_ledger_unchanged(data: Path) -> None:
    async with ready(data) as (process, channel):
        store = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
        first = (await store.CommitTurn(kv.turn([1]))).version
        size = (data / "store.db-wal").stat().st_size
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size + 20_000, hard))
        turn = kv.turn(list(range(10_000)), first, keep=1, request_id="r")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await store.CommitTurn(turn)
        assert error.value.code() is grpc.StatusCode.INTERNAL
        opened = await store.OpenCache(pb.OpenCacheRequest(key=kv.key(), request_id="r"))
        assert opened.version == first and list(opened.ledger.token_ids) == [1] and not opened.HasField("turn")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert (await store.CommitTurn(turn)).version.version == 2
        process.kill()
    async with running(data) as again:
        opened = await again.cache.OpenCache(pb.OpenCacheRequest(key=kv.key()))
        assert list(opened.ledger.token_ids) == [1, *range(10_000)]
