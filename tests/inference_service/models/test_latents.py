"""Attention over latents beside mlx-lm's own over K and V of all heads, with the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import BatchKVCache, make_prompt_cache

from agentmem.kv.bits import KVBits
from benchmarks.loading import load
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.computing import EstimatedCost
from inference_service.engine.geometry import LayerGroup
from inference_service.engine.quality import LADDER, divergences, measure, sample
from inference_service.models import latents
from inference_service.models.capability import QuantizationSettings, judged
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.kv_setup import choose
from inference_service.models.latents import LatentAttention, keep_latents
from inference_service.models.loaded import LoadedModel, read_weights
from inference_service.models.opening import ModelSpec, open_network, open_text
from tests.model_types.building import check_config
from tests.model_types.configs import config
from tests.tiny_models import write_deepseek2, write_llama, write_lora, write_quantized, write_tiny
from tests.tiny_own_attention import write_deepseek3, write_deepseek32

PROMPT = [[7 * i % 290 + 3 for i in range(31)]]


def write_full(directory: Path) -> Path:
    extra = json.loads((write_deepseek2(directory / "lite") / "config.json").read_text())
    return write_tiny(directory, "deepseek_v2", {**extra, "q_lora_rank": 48}, 0)


def write_minicpm3(directory: Path) -> Path:
    extra: dict[str, Any] = {
        "model_type": "minicpm3",
        "hidden_size": 128,
        "dim_model_base": 64,
        "kv_lora_rank": 64,
        "q_lora_rank": 48,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 64,
        "scale_depth": 1.4,
        "scale_emb": 12,
        "attention_bias": False,
        "rope_scaling": {"long_factor": [1.5] * 16, "short_factor": [1.0] * 16, "type": "longrope"},
    }
    return write_tiny(directory, "minicpm3", extra, 0)


def write_youtu(directory: Path) -> Path:
    extra: dict[str, Any] = {
        "model_type": "youtu_llm",
        "kv_lora_rank": 64,
        "q_lora_rank": 48,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
    }
    return write_tiny(directory, "youtu_llm", extra, 0)


WRITERS = [write_deepseek2, write_full, write_minicpm3, write_youtu]
WIDTHS = {write_deepseek2: (128, 64), write_full: (128, 64), write_minicpm3: (64, 32), write_youtu: (64, 64)}


def networks(directory: Path) -> tuple[nn.Module, nn.Module]:
    """mlx-lm's network of a directory, and one that keeps latents."""
    both = [mlx_lm.load(str(directory))[0] for _ in range(2)]
    keep_latents("tiny", both[1], AttentionBackend())
    for network in both:
        network.set_dtype(mx.float32)
    return both[0], both[1]


def difference(one: mx.array, other: mx.array) -> float:
    return float(mx.abs(one - other).max() / mx.abs(one).max())


def check_same(directory: Path) -> None:
    """In prompts, chunks and steps, without a cache, and of rows of different lengths."""
    plain, latent = networks(directory)
    prompt = mx.array(PROMPT)
    assert difference(plain(prompt), latent(prompt)) < 1e-4
    caches = make_prompt_cache(plain), make_prompt_cache(latent)
    for part in (prompt[:, :20], prompt[:, 20:29], prompt[:, 29:30], prompt[:, 30:]):
        assert difference(plain(part, cache=caches[0]), latent(part, cache=caches[1])) < 1e-4
    rows = mx.concatenate([prompt[:, :20], mx.pad(prompt[:, 20:], [(0, 0), (9, 0)])])
    batches = [[BatchKVCache([0, 9]) for _ in network.layers] for network in (plain, latent)]
    for part in (rows, rows[:, :1]):
        assert difference(plain(part, cache=batches[0]), latent(part, cache=batches[1])) < 1e-4


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_latents_are_enough(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    check_same(write(tmp_path / "m"))


def test_a_matrix_that_is_dequantized_for_many_latents_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latents, "_MANY", 2)
    check_same(write_quantized(tmp_path / "q", write_deepseek2(tmp_path / "m"), bits=4, group_size=32))


@pytest.mark.parametrize("mode", [{"bits": 4, "group_size": 32}, {"bits": 4, "group_size": 32, "mode": "mxfp4"}])
def test_quantized_weights_are_moved_and_not_quantized_again(tmp_path: Path, mode: dict[str, Any]) -> None:
    check_same(write_quantized(tmp_path / "q", write_deepseek2(tmp_path / "m"), **mode))


def opened(directory: Path, hashes: ContentHashes, **options: Any) -> LoadedModel:
    return load("tiny", str(directory), hashes=hashes, **options)


@pytest.fixture
def hashes(tmp_path: Path) -> ContentHashes:
    return ContentHashes(tmp_path / "hashes.json")


@pytest.mark.slow("write_deepseek2")
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_a_cache_has_one_head_of_latents(tmp_path: Path, hashes: ContentHashes, write: Callable[[Path], Path]) -> None:
    model = opened(write(tmp_path / "m"), hashes, quantization=QuantizationSettings(KVBits(8, 8), 32))
    assert model.geometry.full == LayerGroup((0, 1), 1, *WIDTHS[write])


@pytest.mark.parametrize("quantized", [False, True])
def test_weights_take_what_they_took(tmp_path: Path, *, quantized: bool) -> None:
    """Also while they are read: no second copy of a layer's but for a moment."""
    directory = write_deepseek2(tmp_path / "m")
    if quantized:
        directory = write_quantized(tmp_path / "q", directory, bits=4, group_size=32)
    plain, _ = mlx_lm.load(str(directory))
    wanted = {name: part.nbytes for name, part in tree_flatten(plain.parameters())}
    del plain
    spec = ModelSpec("tiny", directory, dtype="float32")
    info, network = open_network(spec, open_text(spec), AttentionBackend())
    found = {name: part.nbytes for name, part in tree_flatten(network.model.parameters())}
    assert (found, info.weight_bytes) == (wanted, sum(wanted.values()))
    mx.clear_cache()
    before = mx.get_active_memory()
    assert list(read_weights(info, network))[-1] == 1.0
    assert mx.get_active_memory() - before <= 1.05 * info.weight_bytes + 65536


def test_a_model_of_which_only_the_configuration_is_there_can_be_judged(tmp_path: Path) -> None:
    config = json.loads((write_deepseek2(tmp_path / "m") / "config.json").read_text())
    check_config("tiny", config, AttentionBackend(), QuantizationSettings())


def test_an_adapter_of_the_matrix_behind_latents_keeps_all_heads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = write_deepseek2(tmp_path / "m")
    spec = ModelSpec("tiny", directory, adapter=write_lora(tmp_path / "adapter", directory))
    info, _ = open_network(spec, open_text(spec), AttentionBackend())
    assert info.geometry.full == LayerGroup((0, 1), 2, 192, 128)
    assert "kv_b_proj is LoRALinear" in str([vars(record) for record in caplog.records])


def test_an_adapter_of_other_matrices_goes_with_latents(tmp_path: Path) -> None:
    directory = write_deepseek2(tmp_path / "m")
    adapter = write_lora(tmp_path / "adapter", directory, keys=["self_attn.q_proj", "self_attn.o_proj"])
    spec = ModelSpec("tiny", directory, adapter=adapter)
    info, network = open_network(spec, open_text(spec), AttentionBackend())
    assert info.geometry.full == LayerGroup((0, 1), 1, 128, 64)
    attention = network.model.layers[0].self_attn
    assert isinstance(attention, LatentAttention)
    assert type(attention.q_proj).__name__ == "LoRALinear"


def test_the_ladder_of_bits_judges_latents(tmp_path: Path, hashes: ContentHashes) -> None:
    """A bit more of latents, which are keys and values, helps more than one of rotary keys."""
    model = opened(write_deepseek2(tmp_path / "m"), hashes)
    network, geometry, means = model.engine.model, model.geometry, model.calibration
    formats = [geometry.format.with_bits(bits) for bits in ("4", "4/5", "5/4", "8")]
    four, rotary, latent, eight = divergences(network, sample(model.tokenizer, 96), geometry, formats, means).nats
    assert eight.mean < latent.mean < min(rotary.mean, four.mean)
    quality = measure(network, model.tokenizer, geometry, 96, means)
    tried = [bits for bits in LADDER if bits in quality.divergences]
    assert tried == list(LADDER[: len(tried)]) and choose(quality)[0] == quality.recommended == tried[-1]


@pytest.mark.parametrize("model_type", ["deepseek_v3", "glm4_moe_lite", "bailing_hybrid"])
def test_models_that_keep_latents_themselves_attend_over_them_packed(model_type: str) -> None:
    module = import_module(f"mlx_lm.models.{model_type}")
    network = module.Model(module.ModelArgs.from_dict(config(model_type)))
    prompt = mx.array(PROMPT) % 64
    before = network(prompt, cache=make_prompt_cache(network))
    backend = AttentionBackend()
    keep_latents("tiny", network, backend)
    backend.install(network)
    geometry, _ = judged("tiny", network, backend, QuantizationSettings())
    assert (geometry.latents, geometry.shows_arrays, geometry.full.kv_heads) == (True, False, 1)
    assert difference(before, network(prompt, cache=make_prompt_cache(network))) < 1e-4


@pytest.mark.parametrize(
    ("write", "width"),
    [
        (write_deepseek2, 2 * (2 * 128 + 64 + 128)),
        (write_deepseek3, 4 * (2 * 64 + 64 + 64)),
        (write_deepseek32, 4 * (2 * 64 + 64 + 64)),
        (write_llama, 0),
    ],
)
def test_what_prefill_makes_of_latents_is_known_before_weights_are_read(
    write: Callable[[Path], Path], width: int, tmp_path: Path
) -> None:
    """K, K with its rotary part, and V, of all heads. DeepSeek V3.2's attention is mlx-lm's own."""
    spec = ModelSpec("m", write(tmp_path / "model"))
    info, _ = open_network(spec, open_text(spec), AttentionBackend())
    assert isinstance(info.cost, EstimatedCost)
    assert info.cost.key_bytes == info.geometry.layer_bytes_per_token + 4 * width
