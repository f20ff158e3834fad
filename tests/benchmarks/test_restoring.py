"""The smallest restore that the benchmark can measure, and what it says of it."""

import asyncio
from pathlib import Path
from typing import Any

import mlx.core as mx

from agentmem.kv.blockfile import BLOCK_TOKENS
from benchmarks.restoring import GEOMETRY, Pool, measure, raw, tables, write


def test_a_block(tmp_path: Path) -> None:
    files = write(tmp_path, 2 * BLOCK_TOKENS)
    pool = Pool(BLOCK_TOKENS)
    with asyncio.Runner() as loop:
        found = measure(loop, pool, files[:1], runs=1)
    assert found["bytes"] == files[0][1].size_bytes > BLOCK_TOKENS * GEOMETRY.bytes_per_token
    restored = found["read"]["median"] + found["assembled"]["median"]
    assert found["restored"]["median"] == restored and found["ratio"]["median"] == restored / found["raw"]["median"]
    figures = {"backend": "cpu", "tokens": {"256": found}}
    (table,) = tables(figures)
    assert table.rows[0][:2] == ["256", "9 MB"]
    assert len(table.rows[0]) == len(table.columns)


def test_what_is_measured_are_the_files_values(tmp_path: Path) -> None:
    files = write(tmp_path, 2 * BLOCK_TOKENS)
    pool = Pool(2 * BLOCK_TOKENS)
    with asyncio.Runner() as loop:
        _, _, sequence = pool.restore(loop, files)
    assert sequence.length == 2 * BLOCK_TOKENS
    for block, (_, file) in zip(sequence.full.blocks, files, strict=False):
        stored = pool.store.read_block(block, BLOCK_TOKENS)()
        loaded: Any = mx.load(file.path)
        for name, wanted in loaded.items():
            assert stored[name] == bytes(memoryview(wanted.view(mx.uint8))), name
    raw(files)
