"""Tests of files of KV share files in a real store, and ways to damage them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import pytest

from agentmem.kv.blockfile import CHUNK_BYTES, BlockHeader, FileName
from agentmem.kv.ledger import NO_VERSION
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1.types_pb2 import MISS_REASON_ABSENT, MISS_REASON_CORRUPT
from agentmem.validation import AgentKey
from inference_service.engine.geometry import Geometry, HostTensors, LayerGroup
from inference_service.engine.quantization import FOUR_BITS
from inference_service.memory.checkpoints import checkpoint_headers
from inference_service.memory.restore import headers
from inference_service.storage.blocks import BlockMiss
from inference_service.storage.client import StoreClient
from inference_service.storage.transport import File, read_all, write
from tests.inference_service.storage.test_blocks import random_tensors

KEY = AgentKey("ns", "a", "m")
FULL, SLIDING = tuple(range(0, 32, 2)), tuple(range(1, 32, 2))
GEOMETRY = Geometry(32, mx.float32, FOUR_BITS, LayerGroup(FULL, 2, 64, 64), LayerGroup(SLIDING, 2, 64, 64, window=64))
"""Files of several chunks."""
TOKENS = range(600)


@dataclass
class World:
    """A store and what a worker has of it."""

    data: Path
    store: StoreClient

    async def write(self, header: BlockHeader, seed: int = 0) -> dict[str, bytes]:
        """A file with random tensors, published; the tensors."""
        name, tensors = FileName.of(header), tensors_of(header, seed)
        paths = await self.store.stage("ns", [name])
        file = await write(paths[name], header, tensors, GEOMETRY)
        await self.store.publish(KEY, NO_VERSION, [file], [], header.fingerprint)
        return tensors

    async def find(self, header: BlockHeader) -> pb.StoredFile:
        names = [header.chain_hash]
        opened = await self.store.open(AgentKey("ns", "", "m"), block_hashes=names, window_hashes=names)
        return (opened.windows if header.window else opened.files)[header.chain_hash]

    async def read(self, header: BlockHeader, file: pb.StoredFile) -> HostTensors:
        [found] = await read_all([(header, file)], GEOMETRY)
        if isinstance(found, BlockMiss):
            raise found
        return found

    async def missed(self, header: BlockHeader, file: pb.StoredFile) -> tuple[int, str, bool]:
        with pytest.raises(BlockMiss) as caught:
            await self.read(header, file)
        return caught.value.reason, caught.value.fault, caught.value.damaged


def blocks() -> list[BlockHeader]:
    return list(headers("print", "ns", TOKENS))


def window() -> BlockHeader:
    return checkpoint_headers("print", "ns", TOKENS, {600: 300})[0]


def tensors_of(header: BlockHeader, seed: int = 0) -> dict[str, bytes]:
    return random_tensors(GEOMETRY, header.token_count, seed, window=header.window)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(2 * CHUNK_BYTES))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


DAMAGE: dict[Callable[[Path], None], tuple[int, str, bool]] = {
    flip: (MISS_REASON_CORRUPT, "digest", True),
    cut: (MISS_REASON_CORRUPT, "digest", True),
    lengthen: (MISS_REASON_CORRUPT, "digest", True),
    empty: (MISS_REASON_CORRUPT, "digest", True),
    remove: (MISS_REASON_ABSENT, "missing", True),
}
"""Each with the miss that it is: reason, fault, and whether the file is damaged."""


def held(read: HostTensors | BlockMiss) -> dict[str, bytes]:
    assert not isinstance(read, BlockMiss)
    return {name: tensor.tobytes() for name, tensor in read.items()}


async def stored(world: World) -> tuple[list[File], list[dict[str, bytes]]]:
    """Three blocks, the last a tail, and a window."""
    headers = [*blocks(), window()]
    tensors = [await world.write(header, seed) for seed, header in enumerate(headers)]
    return [(header, await world.find(header)) for header in headers], tensors
