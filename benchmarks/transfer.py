"""Files of KV from the store to the worker's memory, verified: by path, and as streams over a Unix socket.

    agentmem bench transfer [--blocks 10] [--runs 7]

Blocks are of the geometry of Llama 3.1 8B (9.4 MB each, random values), read as a turn reads them: all at once. The
files are in the page cache. Writing is one block after the other, as after a turn, fsyncs included.
"""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from agentmem.channels import connect
from agentmem.kv.blockfile import BLOCK_TOKENS, FileName
from agentmem.kv.ledger import NO_VERSION
from agentmem.validation import AgentKey
from benchmarks import options, results
from benchmarks.tables import Table, milliseconds
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.quantization import FOUR_BITS
from inference_service.memory.restore import headers
from inference_service.storage.blocks import BlockMiss
from inference_service.storage.client import StoreClient
from inference_service.storage.transport import PathTransport, StreamTransport, Target, Transport

KEY = AgentKey("benchmark", "", "llama-3.1-8b")
GEOMETRY = Geometry(32, mx.float16, FOUR_BITS, LayerGroup(tuple(range(32)), 8, 128, 128))
BYTES = {"U32": 4, "F16": 2}


@asynccontextmanager
async def store() -> AsyncIterator[StoreClient]:
    """A store process with an empty data directory."""
    root = Path(tempfile.mkdtemp(prefix="am-", dir="/tmp"))
    command = ("-m", "cache_service", f"--data={root}", "--metrics=", "--log-level=warning")
    process = await asyncio.create_subprocess_exec(sys.executable, *command)
    try:
        async with connect(f"unix:{root}/run/store.sock") as channel:
            client = StoreClient(channel)
            await asyncio.wait_for(channel.channel_ready(), 60)
            yield client
    finally:
        process.kill()
        await process.wait()
        shutil.rmtree(root)


async def write(client: StoreClient, transfer: Transport, fingerprint: str, blocks: int) -> float:
    """Seconds to write and publish that many blocks."""
    named = list(headers(fingerprint, KEY.namespace, range(blocks * BLOCK_TOKENS)))
    shapes = GEOMETRY.block_shapes(BLOCK_TOKENS)
    tensors = {name: os.urandom(BYTES[dtype] * int(np.prod(shape))) for name, (dtype, shape) in shapes.items()}
    started = time.perf_counter()
    paths = await client.stage(KEY.namespace, map(FileName.of, named))
    files = []
    for header in named:
        target = Target(KEY, NO_VERSION, paths[FileName.of(header)])
        file, published = await transfer.write(target, header, tensors, GEOMETRY)
        files += [] if published else [file]
    await client.publish(KEY, NO_VERSION, files, [], fingerprint)
    return time.perf_counter() - started


async def read(client: StoreClient, transfer: Transport, fingerprint: str, blocks: int) -> float:
    """Seconds to read and verify them."""
    named = list(headers(fingerprint, KEY.namespace, range(blocks * BLOCK_TOKENS)))
    files = (await client.open(KEY, block_hashes=[header.chain_hash for header in named])).files
    wanted = [(header, files[header.chain_hash]) for header in named]
    started = time.perf_counter()
    found = await transfer.read_all(wanted, GEOMETRY)
    seconds = time.perf_counter() - started
    assert not any(isinstance(each, BlockMiss) for each in found)
    return seconds


async def main(blocks: int, runs: int) -> None:
    """Measure both ways in turns, print, write."""
    samples: dict[str, list[float]] = {f"{kind} {way}": [] for kind in ("read", "write") for way in ("path", "stream")}
    async with store() as client:
        transports: list[Transport] = [PathTransport(), StreamTransport(client)]
        for run in range(runs + 1):
            for transfer in transports:
                fingerprint = f"{run}-{transfer.name}"
                written = await write(client, transfer, fingerprint, blocks)
                loaded = await read(client, transfer, fingerprint, blocks)
                if run:  # the first one warms up
                    samples[f"write {transfer.name}"].append(written)
                    samples[f"read {transfer.name}"].append(loaded)
    figures = {"blocks": blocks, **{name: results.summary(values) for name, values in samples.items()}}
    results.conclude("transfer", figures, tables(figures))


def tables(figures: dict[str, Any]) -> list[Table]:
    """Both ways, reading and writing."""
    rows = []
    for kind in ("read", "write"):
        path, stream = (figures[f"{kind} {way}"] for way in ("path", "stream"))
        ratio = stream["median"] / path["median"]
        rows.append((kind, milliseconds(path), milliseconds(stream), f"{ratio:.1f}x"))
    return [Table(f"{figures['blocks']} blocks of 9.4 MB", ("", "path", "stream", "stream / path"), rows)]


if __name__ == "__main__":
    parser = options.parser(__doc__)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--runs", type=options.at_least(1), default=7)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.blocks, arguments.runs))
