"""The check of quantized KV measures random models of each architecture, and one that has learned."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest

from inference_service.engine import quality
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.calibrating import calibrate
from inference_service.engine.calibration import Calibration
from inference_service.engine.geometry import Geometry
from inference_service.engine.network import Network
from inference_service.engine.paged.alone import SequenceKVCache, new_caches
from inference_service.engine.quality import (
    LADDER,
    WINDOWS_LADDER,
    Divergence,
    Quality,
    divergences,
    kl_divergences,
    measure,
    sample,
)
from inference_service.engine.quantization import PLAIN, KVFormat
from inference_service.models.capability import QuantizationSettings, judged
from inference_service.text.tokenizer import Tokenizer
from tests import tiny_models

DEMO = Path(quality.__file__).parents[1] / "demo_model"
TOKENS = quality.TOKENS
pytestmark = pytest.mark.usefixtures("by_openblas")


@dataclass(frozen=True)
class Loaded:
    """As loading does it, less what the check does not need."""

    model: nn.Module
    tokenizer: Tokenizer
    geometry: Geometry
    seam: AttentionBackend

    @property
    def network(self) -> Network:
        return Network(self.model)

    def measured(self, tokens: int = TOKENS, bits: str = "4", **format: Any) -> Quality:
        by = replace(self.geometry.format.with_bits(bits), **format)
        means = self.means() if by.scheme != PLAIN else None
        return measure(self.network, self.tokenizer, replace(self.geometry, format=by), tokens, means)

    def means(self) -> Calibration:
        return calibrate(self.network, sample(self.tokenizer, 1024), self.geometry)


def loaded(directory: Path, group_size: int = 64) -> Loaded:
    model, wrapper = mlx_lm.load(str(directory))[:2]
    model.set_dtype(mx.float32)
    seam = AttentionBackend()
    seam.install(model)
    geometry, _ = judged("m", model, seam, QuantizationSettings(group_size=group_size))
    return Loaded(model, Tokenizer(wrapper._tokenizer.backend_tokenizer, wrapper.eos_token_ids), geometry, seam)


@pytest.fixture(scope="module")
def demo() -> Loaded:
    return loaded(DEMO)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return loaded(tiny_models.write_llama(tmp_path_factory.mktemp("llama")))


def with_key_bias(model: nn.Module, channel: int, bias: float) -> nn.Module:
    """Give one channel of each layer's first key head a bias."""
    for layer in model.layers:
        projection = layer.self_attn.k_proj
        vector = mx.zeros((projection.weight.shape[0],)) if "bias" not in projection else projection.bias
        vector[channel] = bias
        projection.bias = vector
    return model


WRITERS: list[Callable[[Path], Path]] = [
    tiny_models.write_llama,
    tiny_models.write_qwen3,
    tiny_models.write_qwen2,
    tiny_models.write_gemma3,
    tiny_models.write_gpt_oss,
    tiny_models.write_deepseek2,
]


@pytest.mark.slow("write_gpt_oss")
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_each_architecture_is_measured_and_left_as_it_was(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """8 bits change random models little and 4 bits much more: the unquantized reference is the same model."""
    subject = loaded(write(tmp_path / "m"))
    heads, latents = subject.seam.heads, subject.seam.latents
    prompt = mx.array([list(range(40))])
    before = subject.model(prompt, cache=new_caches(subject.geometry))
    mx.eval(before)
    found = subject.measured(160, "8")
    assert found.tokens == 160, "longer than a chunk, and than the windows"
    assert 0 < found.divergences["8"].mean < 0.05
    assert 5 * found.divergences["8"].mean < found.divergences["4"].mean < 1
    assert (subject.seam.heads, subject.seam.latents) == (heads, latents)
    assert mx.array_equal(before, subject.model(prompt, cache=new_caches(subject.geometry)))


@pytest.mark.slow
def test_the_demo_model_is_good_with_4_bits(demo: Loaded) -> None:
    formats = [replace(demo.geometry.format, k_bits=bits, v_bits=bits) for bits in (2, 4, 8)]
    text = sample(demo.tokenizer, TOKENS)
    two, four, eight = divergences(demo.network, text, demo.geometry, formats, demo.means()).nats
    assert 0 < eight.mean < four.mean / 20
    assert four.mean < quality.MOST_NATS < two.mean
    assert demo.measured() == Quality(TOKENS, {"4": four})
    assert demo.measured().recommended == "4"


@pytest.mark.slow
def test_keys_with_an_outlier_are_found_and_more_bits_of_k_help() -> None:
    """A bias on the slowest channel of RoPE shifts all scores of a query alike: unquantized, nothing changes."""
    subject = loaded(DEMO)
    text = mx.array([sample(subject.tokenizer, 64)])
    before = subject.model(text)[0]
    with_key_bias(subject.model, 31, 100.0)
    assert kl_divergences(before, subject.model(text)[0]).mean() < 1e-3
    assert subject.measured().recommended in LADDER[:2], "what all keys have in common is not packed"
    found = subject.measured(scheme=PLAIN)
    assert found.divergences["4"].mean > 0.5
    best = found.recommended
    assert best in LADDER[1:]
    assert [*found.divergences] == [*LADDER[: LADDER.index(best) + 1]], "up to the first that is good"
    assert found.divergences[best].good
    assert f'set kv_bits = "{best}"' in found.verdict("4")
    text = sample(subject.tokenizer, TOKENS)
    (eight,) = divergences(subject.network, text, subject.geometry, [KVFormat(8, 8, scheme=PLAIN)]).nats
    assert eight.mean < 0.02


def test_the_mean_is_of_the_unquantized_against_the_quantized_over_all_positions(llama: Loaded) -> None:
    """Computed again by NumPy in float64, from whole passes; with 2 bits of V, so that the other direction differs."""
    token_ids = sample(llama.tokenizer, 80)
    caches = new_caches(replace(llama.geometry, format=KVFormat(8, 2, scheme=PLAIN)))
    logits = (llama.model(mx.array([token_ids])), llama.model(mx.array([token_ids]), cache=caches))
    log_p, log_q = (np.array(nn.log_softmax(each[0], axis=-1)).astype(np.float64) for each in logits)
    expected = (np.exp(log_p) * (log_p - log_q)).sum(-1)
    other_way = (np.exp(log_q) * (log_q - log_p)).sum(-1).mean()
    found = divergences(llama.network, token_ids, llama.geometry, [KVFormat(8, 2, scheme=PLAIN)]).nats[0]
    assert found.mean == pytest.approx(expected.mean(), rel=1e-3)
    assert found.tail == pytest.approx(np.quantile(expected, 0.99), rel=1e-3)
    assert abs(other_way - expected.mean()) > 0.01 * expected.mean()


@pytest.mark.slow
def test_the_ladder_is_climbed_to_the_first_rung_that_is_good(llama: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "MOST_TAIL_NATS", 100.0)
    monkeypatch.setattr(quality, "MOST_NATS", 0.0)
    bad = llama.measured(64)
    assert (*bad.divergences,) == LADDER
    assert bad.recommended == ""
    assert bad == llama.measured(64, "8"), "whatever bits it runs with, the figures are the same"
    for rung, bits in enumerate(LADDER):
        monkeypatch.setattr(quality, "MOST_NATS", bad.divergences[bits].mean)
        found = llama.measured(64)
        assert found.recommended == bits
        assert found.divergences == {each: bad.divergences[each] for each in LADDER[: rung + 1]}


@pytest.mark.slow
def test_bits_of_windows_are_tried_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = loaded(tiny_models.write_gemma3(tmp_path / "m"))
    monkeypatch.setattr(quality, "MOST_NATS", 0.0)
    found = subject.measured(160)
    assert (*found.divergences,) == WINDOWS_LADDER == found.rungs
    nats = [each.mean for each in found.divergences.values()]
    assert nats == sorted(nats, reverse=True), "each rung is nearer"
    monkeypatch.setattr(quality, "MOST_NATS", nats[1])
    assert subject.measured(160).recommended == "4w6"
    assert found.answers("4w6")
    assert not replace(found, divergences={"4": found.divergences["4"]}).answers("4")


def test_the_models_own_bits_are_always_measured(llama: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "MOST_NATS", 100.0)
    monkeypatch.setattr(quality, "MOST_TAIL_NATS", 100.0)
    for bits, expected in (("4", ["4"]), ("8/4", ["4", "8/4"]), ("4/3", ["4/3", "4"]), ("4/5", ["4", "4/5"])):
        found = llama.measured(64, bits)
        assert [*found.divergences] == expected, "the fewest first"
        assert found.recommended == "4"


@pytest.mark.slow
def test_logits_that_are_nan_with_quantized_kv_are_told(llama: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    original = SequenceKVCache.update_and_fetch

    def spoiled(self: SequenceKVCache, keys: mx.array, values: mx.array) -> Any:
        k, v = original(self, keys, values)
        return k, v * (math.nan if self.codec.format.k_bits == 4 else 1.0)

    def infinite(self: SequenceKVCache, keys: mx.array, values: mx.array) -> Any:
        k, v = original(self, keys, values)
        return k, v * math.inf

    monkeypatch.setattr(SequenceKVCache, "update_and_fetch", spoiled)
    found = llama.measured()
    assert found.divergences["4"].mean == math.inf
    assert found.recommended in LADDER[1:]
    monkeypatch.setattr(SequenceKVCache, "update_and_fetch", infinite)
    found = llama.measured()
    assert found.divergences == dict.fromkeys(LADDER, Divergence(math.inf, math.inf))
    assert found.recommended == ""
    assert "spoils this model" in found.verdict("4")


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_logits_that_are_none_without_quantization_are_told(weight: float, tmp_path: Path) -> None:
    subject = loaded(tiny_models.write_llama(tmp_path / "m"))
    subject.model.lm_head.weight[5, 3] = weight
    found = subject.measured()
    assert found == Quality(TOKENS, {})
    assert found.recommended == ""
    assert "even without quantized KV" in found.verdict("4")


def test_the_sample_begins_as_prompts_do(llama: Loaded) -> None:
    bos = llama.tokenizer.special_id(tiny_models.BOS)
    assert sample(llama.tokenizer, 8)[0] == bos
    assert bos not in sample(llama.tokenizer, 1_000_000)[1:]
