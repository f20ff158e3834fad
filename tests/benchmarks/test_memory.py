"""Memory of models: by numbers worked out by hand from the published configurations, and through the command."""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from benchmarks import memory


@pytest.mark.parametrize(
    ("name", "fp16", "q4"),
    [
        ("llama-3.1-8b", 128 * 1024, 36 * 1024),
        ("qwen-2.5-14b", 192 * 1024, 54 * 1024),
        ("gemma-3-12b", 64 * 1024, 18 * 1024),
        ("gpt-oss-20b", 24 * 1024, 6912),
        ("deepseek-v2-lite", 27 * 16 * 320 * 2, 8_748),
    ],
)
def test_bytes_of_a_token(name: str, fp16: int, q4: int) -> None:
    model = memory.model_of(name, mx.bfloat16)
    grown = memory.fp16_bytes(model.plain, 16384) - memory.fp16_bytes(model.plain, 8192)
    assert (grown // 8192, model.geometry.bytes_per_token) == (fp16, q4)


def test_sliding_layers_stop_growing() -> None:
    model = memory.model_of("gemma-3-12b", mx.bfloat16)
    assert memory.fp16_bytes(model.plain, 16384) == pytest.approx(1.31 * 2**30, rel=0.01)
    assert memory.q4_bytes(model.geometry, 16384) < 0.4 * 2**30
    uncapped = memory.fp16_bytes(model.plain, 8192, capped=False)
    assert int(10.2e9) // uncapped == 3, "the paper's three agents"


@pytest.mark.slow
async def test_a_hybrid_model_through_the_command(tmp_path: Path) -> None:
    given = "--models gpt-oss-20b --lengths 1024 --tokens 1024 --budget 1e8 --output"
    assert await memory.main(memory.parser().parse_args([*given.split(), str(tmp_path / "memory")])) == 0
    found = json.loads((tmp_path / "memory.json").read_text())
    row = found["figures"]["models"]["gpt-oss-20b"]
    for dtype, bits in (("bfloat16", 4.5), ("float32", 5.0)):
        assert row[dtype]["pool"]["agents"] > 1
        assert row[dtype]["agents"]["1024"] == 12 * 1024 * (1024 + 384) * bits / 8
    assert [table["title"] for table in found["tables"]] == [
        "KV of one agent: fp16 → Q4 with 16-bit scales",
        "Agents of 1024 tokens in 0.1 GB",
    ]


async def test_a_budget_for_no_agent_is_refused() -> None:
    with pytest.raises(SystemExit, match="raise --budget"):
        await memory.of_model("llama-3.1-8b", ["bfloat16"], [4096], 8192, 1_000_000)
