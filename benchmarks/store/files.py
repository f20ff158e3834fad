"""Files of KV between a worker and the store: what a turn writes, and what a verified load costs.

The geometry is that of Llama 3.1 8B with 4 bits and bfloat16 scales, 9.4 MB a block; the bytes are random. Files are
written and read by the worker's own functions.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx

from agentmem.kv import blockfile
from agentmem.kv.blockfile import BLOCK_TOKENS, BlockHeader
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from benchmarks import results
from benchmarks.store.agents import FINGERPRINT, NAMESPACE, key, tokens_of, turn
from benchmarks.store.process import StoreProcess, written_bytes
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.quantization import FOUR_BITS
from inference_service.storage.blocks import read_block, write_block

LLAMA = Geometry(32, mx.bfloat16, FOUR_BITS, LayerGroup(tuple(range(32)), kv_heads=8, k_dim=128, v_dim=128))
TINY = Geometry(1, mx.bfloat16, FOUR_BITS, LayerGroup((0,), kv_heads=1, k_dim=64, v_dim=64))
PROMPT, TURN = 2048, 300
LOADED = 32
_T = TypeVar("_T")
_BYTES = {"U32": 4, "BF16": 2}


@dataclass
class Agent:
    """One agent as its worker knows it."""

    name: str
    geometry: Geometry = LLAMA
    tokens: list[int] = field(default_factory=list)
    version: types_pb2.AgentVersion = field(default_factory=types_pb2.AgentVersion)

    def headers(self) -> list[BlockHeader]:
        """Its blocks, the tail included."""
        found, parent = [], blockfile.NO_PARENT
        for first in range(0, len(self.tokens), BLOCK_TOKENS):
            count = min(BLOCK_TOKENS, len(self.tokens) - first)
            chain_hash = blockfile.chain_hash(FINGERPRINT, NAMESPACE, parent, self.tokens[first : first + count])
            found.append(BlockHeader(FINGERPRINT, NAMESPACE, chain_hash, parent, first, count))
            parent = chain_hash
        return found

    async def speak(self, store: StoreProcess, new: list[int]) -> int:
        """A turn: committed, its new blocks written and published; the bytes of their files."""
        request = turn(self.name, new, self.version, len(self.tokens))
        self.version = (await store.cache.CommitTurn(request)).version
        self.tokens += new
        headers = {header.chain_hash: header for header in self.headers()}
        names = [pb.FileName(kind=pb.FILE_KIND_BLOCK, chain_hash=each) for each in headers]
        staged = await store.cache.StageBlocks(pb.StageBlocksRequest(namespace=NAMESPACE, names=names))
        files = [_write(file.path, headers[file.chain_hash], self.geometry) for file in staged.files]
        await store.cache.PublishBlocks(
            pb.PublishBlocksRequest(
                key=key(self.name), version=self.version, files=files, references=names, fingerprint=FINGERPRINT
            )
        )
        return sum(file.size_bytes for file in files)


async def turn_writes(store: StoreProcess, turns: int) -> dict[str, Any]:
    """Bytes that both processes send to the disk for a turn, against the Q4 bytes of what the turn has to write.

    That is its new tokens and the tail before them, which is written again as a part of its block.
    """
    agent, samples = Agent("writer"), []
    await agent.speak(store, tokens_of("prompt", PROMPT))
    for number in range(turns):
        tail = len(agent.tokens) % BLOCK_TOKENS
        before = store.written_bytes(), written_bytes()
        files = await agent.speak(store, tokens_of(f"turn {number}", TURN))
        by_store, by_worker = store.written_bytes() - before[0], written_bytes() - before[1]
        needed = (TURN + tail) * LLAMA.bytes_per_token
        samples.append({"needed": needed, "files": files, "store": by_store, "worker": by_worker, "tail": tail})
    return {
        "tokens": TURN,
        "bytes_per_token": LLAMA.bytes_per_token,
        "ratio": results.summary([(each["store"] + each["worker"]) / each["needed"] for each in samples]),
        "ratio_of_all": sum(e["store"] + e["worker"] for e in samples) / sum(e["needed"] for e in samples),
        "turns": samples,
    }


async def loads(store: StoreProcess, rounds: int) -> dict[str, Any]:
    """32 blocks loaded as the worker loads them, against the same bytes only read; in turns, from the page cache."""
    agent = Agent("reader")
    await agent.speak(store, tokens_of("reader", LOADED * BLOCK_TOKENS))
    headers = {header.chain_hash: header for header in agent.headers()}
    request = pb.OpenCacheRequest(key=key(agent.name), known=agent.version, block_hashes=list(headers))
    files = list((await store.cache.OpenCache(request)).files)
    paths = [Path(file.path) for file in files]
    plain, verified = [], []
    for _ in range(rounds + 1):
        plain.append(_seconds(lambda path: path.read_bytes(), paths))
        verified.append(_seconds(lambda f: read_block(f.path, headers[f.chain_hash], f.digest, LLAMA), files))
    return {
        "files": len(files),
        "bytes": sum(file.size_bytes for file in files),
        "read": results.summary(plain[1:]),
        "verified": results.summary(verified[1:]),
        "ratio": statistics.median(verified[1:]) / statistics.median(plain[1:]),
    }


def _seconds(load: Callable[[_T], object], files: Sequence[_T]) -> float:
    started = time.perf_counter()
    for file in files:
        load(file)
    return time.perf_counter() - started


def _write(path: str, header: BlockHeader, geometry: Geometry) -> pb.StoredFile:
    shapes = geometry.block_shapes(header.token_count)
    tensors = {name: os.urandom(prod(shape) * _BYTES[dtype]) for name, (dtype, shape) in shapes.items()}
    digest, size = write_block(path, header, tensors, geometry)
    return pb.StoredFile(
        chain_hash=header.chain_hash,
        kind=pb.FILE_KIND_BLOCK,
        path=path,
        digest=digest,
        size_bytes=size,
        first_token=header.first_token,
        token_count=header.token_count,
    )
