from __future__ import annotations

import io

import pytest
from rich.console import Console

from agentmem.v1 import model_pb2, types_pb2
from gateway.cli.model_tables import about, arithmetic, described_model, models_table, quality

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
    kv_bits="4",
    kv_group_size=64,
    kv_bytes_per_token=18_432,
    weight_bytes=7 * GB,
    kv_bits_measured=[
        model_pb2.KVBitsMeasurement(kv_bits="4", kl_divergence=0.25, kl_divergence_p99=2.5, bytes_per_token=18_432),
        model_pb2.KVBitsMeasurement(
            kv_bits="5/4", kl_divergence=0.0125, kl_divergence_p99=0.1, bytes_per_token=20_480, good=True
        ),
    ],
    recommended_kv_bits="5/4",
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
    assert notes == 'default; pinned; adapter; kv_bits = "5/4" recommended'


@pytest.mark.parametrize("width", [80, 120])
def test_all_of_one(width: int) -> None:
    page = io.StringIO()
    Console(file=page, width=width, highlight=False, markup=False).print(described_model(MODEL))
    lines = page.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    arithmetic = [line.split() for line in lines[lines.index("memory") + 1 :]]
    sizes = {" ".join(words[:1]): words for words in arithmetic}
    assert sizes["usable"][1:3] == ["24.0", "GB"]
    parts = ("weights", "activations", "other", "pool", "arrays")
    taken = [words[words.index("−") + 1] for words in (sizes[part] for part in parts)]
    assert sum(map(float, taken)) == 24.0
    assert sizes["left"][:4] == ["left", "=", "0", "B"]
    assert "20 of 4,096 tokens, 400.0 MB each; or 430,000 tokens" in lines[-1]
    told = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in lines if "  " in line}
    assert told["with 4 bits"] == "KL divergence 0.25 nats, 2.5 at 99 %, 18.4 kB per token"
    assert told["with 5/4 bits"] == "KL divergence 0.013 nats, 0.1 at 99 %, 20.5 kB per token"
    assert told["KV"] == "4 bits in groups of 64, 18.4 kB per token"
    assert "quantized_matmul, off by 0 at most; [fast]" in page.getvalue()


def test_kinds_of_layers() -> None:
    assert dict(about(MODEL))["layers"] == "8 with full attention, 40 with a window of 1,024 tokens"
    recurrent = model_pb2.Model(full_layers=12, recurrent_layers=36, state_bytes=77_000_000)
    assert dict(about(recurrent))["layers"] == "12 with full attention, 36 recurrent, 77.0 MB of state"


def test_parts_that_there_are_none_of_are_not_listed() -> None:
    """Attention over the pool itself takes no arrays."""

    def parts(memory: model_pb2.ModelMemory) -> str:
        return " ".join(str(name) for name in arithmetic(memory).columns[0].cells)

    assert parts(MODEL.memory) == "device usable weights activations other models pool arrays left"
    assert parts(model_pb2.ModelMemory(pool_bytes=1)) == "device usable weights activations pool left"


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
    ("bits", "recommended", "told", "note"),
    [
        ("4", "4", "4 bits are good", ""),
        ("8", "8", "8 bits are good", ""),
        ("8", "5/4", "8 bits are good, and so are 5/4", ""),
        ("4/3", "4", "4/3 bits are good", ""),
        ("3", "4", 'take 4 bits: kv_bits = "4" in the registry file, or --kv-bits 4', 'kv_bits = "4" recommended'),
        ("4", "5/4", 'take 5/4 bits: kv_bits = "5/4" in the registry file, or --kv-bits 5/4', 'kv_bits = "5/4" reco'),
        ("4", "", "no bits are good for this model", "loses quality with quantized KV"),
        ("8", "", "no bits are good for this model", "loses quality with quantized KV"),
    ],
)
def test_quality(bits: str, recommended: str, told: str, note: str) -> None:
    sizes = {"3": 3, "4/3": 4, "4": 5, "5/4": 6, "8": 9}
    good = {recommended, bits} if told.startswith(bits) else {recommended}
    model = model_pb2.Model(model_id="m", kv_bits=bits, recommended_kv_bits=recommended)
    for each, size in sizes.items():
        model.kv_bits_measured.add(kv_bits=each, bytes_per_token=size, good=each in good)
    assert quality(model) == told
    assert note in printed(120, model)[1] and ("kv_bits" in printed(120, model)[1]) == note.startswith("kv_bits")


def test_a_model_that_was_not_measured_is_not_judged() -> None:
    model = model_pb2.Model(model_id="m", kv_bits="5/4", kv_group_size=64)
    assert "quality" not in dict(about(model))
    assert "quality" not in printed(120, model)[1]


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        ({"temperature": 0}, "greedy unless a request says otherwise"),
        ({"temperature": 1, "top_p": 1, "top_k": 0}, "temperature 1 unless a request says otherwise"),
        (
            {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05, "min_p": 0},
            "temperature 0.7, top_p 0.8, top_k 20, repetition_penalty 1.05 unless a request says otherwise",
        ),
    ],
)
def test_sampling_of_a_model(defaults: dict[str, float], said: str) -> None:
    model = model_pb2.Model(sampling=types_pb2.Sampling(**defaults))  # type: ignore[arg-type]
    assert dict(about(model))["sampling"] == said
