"""The smallest restore that the benchmark can measure, and what it says of it."""

import asyncio
from pathlib import Path

import mlx.core as mx

from agentmem.kv.blockfile import BLOCK_TOKENS
from benchmarks.restoring import GEOMETRY, Pool, claims, measure, raw, tables, write


def test_a_block(tmp_path: Path) -> None:
    files = write(tmp_path, 2 * BLOCK_TOKENS)
    pool = Pool(BLOCK_TOKENS)
    with asyncio.Runner() as loop:
        found = measure(loop, pool, files[:1], runs=1)
    assert found["bytes"] == files[0][1].size_bytes > BLOCK_TOKENS * GEOMETRY.bytes_per_token
    restored = found["read"]["median"] + found["assembled"]["median"]
    assert found["restored"]["median"] == restored and found["ratio"]["median"] == restored / found["raw"]["median"]
    figures = {"backend": "cpu", "compiling": pool.compiling, "tokens": {"256": found}}
    (table,) = tables(figures)
    assert table.rows[0][:2] == ["256", "9 MB"]
    assert len(table.rows[0]) == len(table.columns)
    (claim,) = claims(figures)
    assert claim.value == found["ratio"]["median"] and "at 256 tokens" in claim.text


def test_what_is_measured_are_the_files_values(tmp_path: Path) -> None:
    files = write(tmp_path, 2 * BLOCK_TOKENS)
    pool = Pool(2 * BLOCK_TOKENS)
    with asyncio.Runner() as loop:
        _, _, caches = pool.restore(loop, files)
    loaded = [mx.load(file.path) for _, file in files]
    keys, _ = caches[3].buffers.both()
    wanted = mx.concatenate([each["k.weights"][3:4] for each in loaded], axis=2)  # type: ignore[index,call-overload]
    assert mx.array_equal(keys.weights[:, :, : 2 * BLOCK_TOKENS], wanted)
    raw(files)
