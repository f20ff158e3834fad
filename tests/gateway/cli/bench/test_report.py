from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentmem import Model
from agentmem.v1 import model_pb2
from gateway.cli.bench.measuring import Measured, Turn, planned
from gateway.cli.bench.report import figures, markdown

MODEL = Model.of(
    model_pb2.Model(model_id="smol", dtype="float32", kv_bits="4", weight_bytes=23_000_000, device="A CPU; mlx 1")
)
MEASURED = Measured(
    MODEL,
    4012,
    {"cold": [4.0, 4.1, 5.0], "warm": [0.1, 0.2, 0.4], "hot": [0.004, 0.005, 0.0051]},
    {1: [50.0, 60.0, 70.0], 4: [1100.0, 1200.0, 1300.0]},
)


def test_a_table_to_share() -> None:
    head, _, device, _, *rows = markdown(figures(MEASURED, local=False)).splitlines()
    assert head.startswith("**Agentmem 0.1.0, 20") and head.endswith("**: smol, float32, KV in 4 bits, 23.0 MB")
    assert device == "A CPU; mlx 1"
    assert rows == [
        "| agents of 4,012 tokens | median of 3 (range) | speed-up |",
        "|---|---:|---:|",
        "| TTFT, cold: all of it is computed | 4,100 ms (4,000–5,000) | 1.0x |",
        "| TTFT, warm: read from disk | 200 ms (100–400) | 20.5x |",
        "| TTFT, hot: in memory | 5.0 ms (4.0–5.1) | 820.0x |",
        "| tokens/s, 1 agent | 60 (50–70) |  |",
        "| tokens/s, 4 agents at once | 1,200 (1,100–1,300) |  |",
    ]


def test_samples_and_this_machine_are_in_the_json() -> None:
    found = figures(MEASURED, local=True)
    assert found["ttft_seconds"]["warm"] == {"median": 0.2, "min": 0.1, "max": 0.4, "samples": [0.1, 0.2, 0.4]}
    assert found["tokens_per_second"]["4"]["median"] == 1200
    assert found["device"].startswith("A CPU; mlx 1; ") and "Python 3." in found["device"]


def probe(ttft: float, decode: float) -> Turn:
    """A turn of 64 words, which are 80 tokens, and an answer of 8."""
    answer: Any = SimpleNamespace(usage=SimpleNamespace(prompt_tokens=80, completion_tokens=8))
    return Turn(cast(Any, answer), 10.0, 10.0 + ttft, 10.0 + ttft + decode)


@pytest.mark.parametrize(
    ("ttft", "context", "words"),
    [
        (0.08, 100_000, 3200),  # 1,000 tokens/s: 4,000 in 5 s
        (0.08, 4096, 1600),  # half of the context
        (0.01, 100_000, 25600),
        (20, 4096, 200),  # the shortest, however slow it is
    ],
)
def test_prompts_take_seconds(ttft: float, context: int, words: int) -> None:
    assert planned(probe(ttft, 1), context).words == words


@pytest.mark.parametrize(("decode", "tokens"), [(1, 14), (0.001, 128), (60, 8)])
def test_answers_take_seconds(decode: float, tokens: int) -> None:
    assert planned(probe(1, decode), 4096).answer == tokens
