"""Agents with random tokens and random KV, for benchmarks of the store."""

import os
from dataclasses import dataclass, field
from math import prod

import mlx.core as mx
import numpy as np

from agentmem.kv import blockfile
from agentmem.kv.blockfile import BLOCK_TOKENS, BlockHeader
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from benchmarks.store.process import StoreProcess
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.quantization import FOUR_BITS
from inference_service.storage.blocks import write_block

LLAMA = Geometry(32, mx.bfloat16, FOUR_BITS, LayerGroup(tuple(range(32)), kv_heads=8, k_dim=128, v_dim=128))
TINY = Geometry(1, mx.bfloat16, FOUR_BITS, LayerGroup((0,), kv_heads=1, k_dim=64, v_dim=64))
_FINGERPRINT, _NAMESPACE, _MODEL = "0" * 64, "default", "benchmark"
_BYTES_PER_TOKEN = 4
_BYTES = {"U32": 4, "BF16": 2}


def key(agent: str) -> types_pb2.AgentKey:
    return types_pb2.AgentKey(namespace=_NAMESPACE, agent_id=agent, model_id=_MODEL)


def tokens_of(seed: str, tokens: int) -> list[int]:
    number = int.from_bytes(seed.encode()[-8:], "little")
    return [int(each) for each in np.random.default_rng(number).integers(0, 128256, tokens)]


def turn(
    agent: str, tokens: list[int], base: types_pb2.AgentVersion | None = None, keep: int = 0
) -> pb.CommitTurnRequest:
    return pb.CommitTurnRequest(
        key=key(agent),
        base=base,
        keep_tokens=keep,
        token_ids=tokens,
        text=b"word" * len(tokens),
        offsets=range(_BYTES_PER_TOKEN, _BYTES_PER_TOKEN * len(tokens) + 1, _BYTES_PER_TOKEN),
        tokenizer_hash="t",
        generated_tokens=len(tokens) // 2,
        request_id=os.urandom(8).hex(),
        request_digest=bytes(16),
        commit_id=os.urandom(16),
        record=pb.TurnRecord(delta={"text": "word" * (len(tokens) // 2)}),  # type: ignore[arg-type]
    )


@dataclass
class Agent:
    name: str
    geometry: Geometry
    tokens: list[int] = field(default_factory=list)
    version: types_pb2.AgentVersion = field(default_factory=types_pb2.AgentVersion)

    def headers(self) -> list[BlockHeader]:
        found, parent = [], blockfile.NO_PARENT
        for first in range(0, len(self.tokens), BLOCK_TOKENS):
            count = min(BLOCK_TOKENS, len(self.tokens) - first)
            chain_hash = blockfile.chain_hash(_FINGERPRINT, _NAMESPACE, parent, self.tokens[first : first + count])
            found.append(BlockHeader(_FINGERPRINT, _NAMESPACE, chain_hash, parent, first, count))
            parent = chain_hash
        return found

    async def speak(self, store: StoreProcess, new: list[int]) -> None:
        """Commit a turn, and publish its new blocks, by the worker's own functions."""
        request = turn(self.name, new, self.version, len(self.tokens))
        self.version = (await store.cache.CommitTurn(request)).version
        self.tokens += new
        headers = {header.chain_hash: header for header in self.headers()}
        names = [pb.FileName(kind=pb.FILE_KIND_BLOCK, chain_hash=each) for each in headers]
        staged = await store.cache.StageBlocks(pb.StageBlocksRequest(namespace=_NAMESPACE, names=names))
        files = [_write(file.path, headers[file.chain_hash], self.geometry) for file in staged.files]
        await store.cache.PublishBlocks(
            pb.PublishBlocksRequest(
                key=key(self.name), version=self.version, files=files, references=names, fingerprint=_FINGERPRINT
            )
        )


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
