from __future__ import annotations

import io

import pytest
from rich.console import Console

from agentmem.v1 import model_pb2
from gateway.cli.model_tables import about, described_model, models_table, quality

GB = 10**9
MODEL = model_pb2.Model(
    model_id="mlx-community/gemma-3-12b-it-4bit+support",
    state=model_pb2.MODEL_STATE_LOADED,
    is_default=True,
    pinned=True,
    source="mlx-community/gemma-3-12b-it-4bit",
    adapter="/adapters/support",
    architecture="gemma3",
    dtype="bfloat16",
    context_length=131_072,
    full_layers=8,
    sliding_layers=40,
    sliding_window=1024,
    kv_heads=8,
    k_head_dim=256,
    v_head_dim=256,
    kv_bits=4,
    kv_group_size=64,
    kv_bytes_per_token=18_432,
    weight_bytes=7 * GB,
    recommended_kv_bits=8,
    quantization_kl=0.25,
    quantization_kl_8_bits=0.001,
    attention_paths=[model_pb2.AttentionPath(phase="decode", path="quantized_matmul", note="[fast]")],
    memory=model_pb2.ModelMemory(
        device_bytes=32 * GB,
        usable_bytes=24 * GB,
        weight_bytes=7 * GB,
        activation_bytes=GB,
        other_models_bytes=2 * GB,
        pool_bytes=8 * GB,
        batch_bytes=6 * GB,
        agent_4k_bytes=400_000_000,
        agents_4k=20,
        pool_tokens=430_000,
    ),
)


def printed(width: int, *models: model_pb2.Model) -> list[str]:
    page = io.StringIO()
    Console(file=page, width=width, highlight=False, markup=False).print(models_table(models))
    return page.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_off(width: int) -> None:
    page = printed(width, MODEL)
    assert max(map(len, page)) <= width
    assert not any("…" in line for line in page)
    for whole in ("loaded", "131,072", "7.0 GB", "20"):
        assert whole in page[1].split(None, 1)[1]
    name = "".join(line[: page[0].index("state")].strip() for line in page[1:])
    assert name == MODEL.model_id
    notes = " ".join(line[page[0].index("note") :].strip() for line in page[1:]).strip()
    assert notes == "default; pinned; adapter; 8-bit KV recommended"


@pytest.mark.parametrize("width", [80, 120])
def test_all_of_one(width: int) -> None:
    page = io.StringIO()
    Console(file=page, width=width, highlight=False, markup=False).print(described_model(MODEL))
    lines = page.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    arithmetic = [line.split() for line in lines[lines.index("memory") + 1 :]]
    sizes = {" ".join(words[:1]): words for words in arithmetic}
    assert sizes["usable"][1:3] == ["24.0", "GB"]
    parts = ("weights", "activations", "other", "pool", "batches")
    taken = [words[words.index("−") + 1] for words in (sizes[part] for part in parts)]
    assert sum(map(float, taken)) == 24.0
    assert sizes["left"][:4] == ["left", "=", "0", "B"]
    assert "20 of 4,096 tokens, 400.0 MB each; or 430,000 tokens" in lines[-1]
    assert "quantized_matmul, off by 0 at most; [fast]" in page.getvalue()


def test_what_is_not_known_is_not_told() -> None:
    unknown = model_pb2.Model(model_id="a", state=model_pb2.MODEL_STATE_REGISTERED)
    assert dict(about(unknown)) == {"state": "registered"}
    page = io.StringIO()
    Console(file=page, width=80).print(described_model(unknown))
    assert "memory" not in page.getvalue()
    unknown.memory.agents_4k = 3
    Console(file=page, width=80).print(described_model(unknown))
    assert "memory, were it loaded beside the pinned models" in page.getvalue()


@pytest.mark.parametrize(
    ("bits", "kl", "recommended", "told"),
    [
        (4, 0.001, 4, "4 bits are good"),
        (8, 0.2, 8, "8 bits are good"),
        (4, 0.2, 8, "take 8 bits: kv_bits = 8 in the registry file, or --kv-bits 8"),
        (4, float("inf"), 0, "neither is good for this model"),
    ],
)
def test_quality(bits: int, kl: float, recommended: int, told: str) -> None:
    model = model_pb2.Model(kv_bits=bits, quantization_kl=kl, recommended_kv_bits=recommended)
    assert quality(model) == f"KL divergence {kl:.2g} nats with 4 bits; {told}"
