"""From files of KV to blocks of a pool, every byte verified, against mx.load and mx.eval of the same files.

    agentmem bench restoring [--tokens 1024 4096 16384] [--runs 5] [--directory DIRECTORY] [--output NAME]

Blocks are of the geometry of Llama 3.1 8B (9.4 MB each, random values), and in the page cache. In turns: MLX reads the
files; threads read, hash and check them; the engine begins the sequence ("begun"); a sequence begins whose blocks are
in memory ("hot"). MLX's cache is emptied before each. The first round is not counted.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx

from agentmem.kv.blockfile import BLOCK_TOKENS, BlockHeader
from agentmem.v1 import cache_store_pb2
from benchmarks import results
from benchmarks.options import at_least
from benchmarks.tables import Table, milliseconds
from inference_service.engine.geometry import Geometry, HostBuffers, LayerGroup
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.engine.paged.store import KVStore
from inference_service.engine.quantization import FOUR_BITS
from inference_service.memory.restore import headers
from inference_service.storage.blocks import BlockMiss, write_block
from inference_service.storage.transport import File, read_all

GEOMETRY = Geometry(32, mx.bfloat16, FOUR_BITS, LayerGroup(tuple(range(32)), kv_heads=8, k_dim=128, v_dim=128))
PARTS = {"raw": "raw read", "read": "read and verify", "assembled": "begun", "hot": "hot"}
_BYTES = {"U32": 4, "BF16": 2}
_T = TypeVar("_T")


def write(directory: Path, tokens: int) -> list[File]:
    shapes = GEOMETRY.block_shapes(BLOCK_TOKENS)
    tensors = {name: os.urandom(_BYTES[dtype] * prod(shape)) for name, (dtype, shape) in shapes.items()}
    files = []
    for header in headers("benchmark", "benchmark", range(tokens)):
        path = str(directory / f"{header.chain_hash.hex()}.safetensors")
        digest, size = write_block(path, header, tensors, GEOMETRY)
        files.append((header, cache_store_pb2.StoredFile(path=path, digest=digest, size_bytes=size)))
    return files


def raw(files: Sequence[File]) -> None:
    arrays = [array for _, file in files for array in mx.load(file.path).values()]  # type: ignore[union-attr]
    mx.eval(arrays)


class Pool:
    """A store with room for all files and a tail."""

    def __init__(self, tokens: int) -> None:
        self.store = KVStore(GEOMETRY, tokens // BLOCK_TOKENS + 1, 0)

    def restore(self, loop: asyncio.Runner, files: Sequence[File]) -> tuple[float, float, KVSequence]:
        blocks = range(len(files) + 1)

        def into(header: BlockHeader) -> HostBuffers | None:
            return self.store.host_buffers(header.first_token // BLOCK_TOKENS, header.token_count)

        read, found = _seconds(lambda: loop.run(read_all(files, GEOMETRY, into)))
        good = [tensors for tensors in found if not isinstance(tensors, BlockMiss)]
        if len(good) < len(files):
            raise SystemExit("a file that was written a moment ago is damaged")
        del found
        outside = [(block, tensors) for block, tensors in zip(blocks, good, strict=False) if tensors]
        start = Start(blocks, (), len(files) * BLOCK_TOKENS, files=outside, arrays=False)
        begun, sequence = _seconds(lambda: self.store.started(start))
        return read, begun, sequence

    def hot(self, tokens: int) -> float:
        """Seconds to begin with what the first blocks have."""
        start = Start(range(tokens // BLOCK_TOKENS + 1), (), tokens, arrays=False)
        return _seconds(lambda: self.store.started(start))[0]


def measure(loop: asyncio.Runner, pool: Pool, files: Sequence[File], runs: int) -> dict[str, Any]:
    tokens = len(files) * BLOCK_TOKENS
    samples: dict[str, list[float]] = {name: [] for name in PARTS}
    for run in range(runs + 1):
        sample = {"raw": _seconds(lambda: raw(files))[0]}
        sample["read"], sample["assembled"], _ = pool.restore(loop, files)
        sample["hot"] = pool.hot(tokens)
        for name, seconds in sample.items():
            if run:
                samples[name].append(seconds)
    restored = [sum(parts) for parts in zip(samples["read"], samples["assembled"], strict=True)]
    return {
        "bytes": sum(file.size_bytes for _, file in files),
        **{name: results.summary(seconds) for name, seconds in samples.items()},
        "restored": results.summary(restored),
        "ratio": results.summary([a / b for a, b in zip(restored, samples["raw"], strict=True)]),
    }


def tables(figures: Mapping[str, Any]) -> list[Table]:
    rows = [
        [
            f"{int(tokens):,}",
            f"{found['bytes'] / 1e6:.0f} MB",
            *(milliseconds(found[name]) for name in ("raw", "read", "assembled", "restored", "hot")),
            f"{found['ratio']['median']:.2f}x",
        ]
        for tokens, found in figures["tokens"].items()
    ]
    names = [PARTS[name] for name in ("raw", "read", "assembled")]
    columns = ("tokens", "files", *names, "restored", PARTS["hot"], "restored / raw read")
    where = f"{figures['backend'].upper()}, files of Llama 3.1 8B"
    return [Table(f"From files to blocks ({where})", columns, rows)]


def main(lengths: Sequence[int], runs: int, directory: str | None, output: str) -> int:
    with tempfile.TemporaryDirectory(dir=directory) as place, asyncio.Runner() as loop:
        files = write(Path(place), max(lengths))
        pool = Pool(max(lengths))
        found = {str(tokens): measure(loop, pool, files[: tokens // BLOCK_TOKENS], runs) for tokens in sorted(lengths)}
    figures = {"backend": results.backend(), "tokens": found}
    return results.conclude(output, figures, tables(figures))


def _seconds(work: Callable[[], _T]) -> tuple[float, _T]:
    mx.synchronize()
    mx.clear_cache()
    started = time.perf_counter()
    result = work()
    mx.synchronize()
    return time.perf_counter() - started, result


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tokens", type=int, nargs="+", default=(1024, 4096, 16384), help="multiples of 256")
    options.add_argument("--runs", type=at_least(1), default=5)
    options.add_argument("--directory", help="where the files are for the time being; else the system's for such")
    options.add_argument("--output", help="name of the file in benchmarks/results")
    arguments = options.parse_args()
    if any(tokens < BLOCK_TOKENS or tokens % BLOCK_TOKENS for tokens in arguments.tokens):
        sys.exit(f"--tokens are multiples of {BLOCK_TOKENS}: files are whole blocks")
    output = arguments.output or f"restoring-{results.backend()}"
    sys.exit(main(arguments.tokens, arguments.runs, arguments.directory, output))
