"""llama.cpp beside our own variants: its formats on a real GGUF file, and its vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from benchmarks import gemma3, smollm2
from benchmarks.gguf_float32 import write_float32
from benchmarks.packages import Unavailable
from benchmarks.quality.llama_cpp import F16, LLAMA_BASE, LLAMA_FORMATS, binding, opened
from benchmarks.quality.measuring import Sums
from inference_service.models.opening import ModelSpec, open_text
from tests.benchmarks import real_models

PROSE = (
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse, and "
    "nothing particular to interest me on shore, I thought I would sail about a little and see the watery part of the "
    "world. "
)


def library() -> Any:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install llama-cpp-python")
    return binding("smollm2")


def files(model: Any) -> tuple[Path, Path]:
    """The directory of a real model, and the file that it was made of."""
    try:
        return model.directory(), model.gguf()
    except Unavailable as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="module")
def read() -> Iterator[tuple[list[int], dict[str, Sums]]]:
    found, (directory, gguf) = library(), files(smollm2)
    tokenizer = open_text(ModelSpec("real", directory)).tokenizer
    token_ids = tokenizer.encode(PROSE * 3, parse_special=False)
    with opened(found, gguf, len(token_ids), 64, {"again": F16, **LLAMA_FORMATS}) as llama:
        llama.check(token_ids, tokenizer)
        yield token_ids, {name: parts[0] for name, parts in llama.read(token_ids, 64).items()}


@pytest.mark.slow
def test_fewer_bits_are_farther_from_f16(read: tuple[list[int], dict[str, Sums]]) -> None:
    kl = {name: sums.divergence for name, sums in read[1].items()}
    assert kl["llama.cpp, q4_0"] > kl["llama.cpp, q5_1"] > kl["llama.cpp, q8_0"] > 0.0
    assert kl["again"] == kl[LLAMA_BASE] == 0.0
    assert read[1]["again"]._replace(spread={}) == read[1][LLAMA_BASE]


@pytest.mark.slow
def test_f16_predicts_as_the_model_of_our_own_does(read: tuple[list[int], dict[str, Sums]]) -> None:
    """The ids mean the same, nothing is put before them, and all have logits."""
    model, _ = real_models.loaded(smollm2.directory)
    token_ids, sums = read
    logits = model(mx.array([token_ids[:-1]]))[0]
    wanted = mx.array(token_ids[1:])[:, None]
    loss = (mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, wanted, axis=-1)[:, 0]).sum().item()
    assert sums[LLAMA_BASE].tokens == len(token_ids) - 1
    assert sums[LLAMA_BASE].loss == pytest.approx(loss, rel=0.02)


@pytest.mark.slow
def test_with_float32_weights_only_kv_makes_a_difference(
    read: tuple[list[int], dict[str, Sums]], tmp_path: Path
) -> None:
    """With its own weights llama.cpp rounds activations to 8 bits, which hides how near q8_0 is."""
    token_ids, own = read
    write_float32(smollm2.gguf(), tmp_path / "wide.gguf")
    with opened(library(), tmp_path / "wide.gguf", len(token_ids), 64) as llama:
        wide = {name: parts[0] for name, parts in llama.read(token_ids, 64).items()}
    assert wide[LLAMA_BASE].loss == pytest.approx(own[LLAMA_BASE].loss, rel=0.02)
    q8, q4 = "llama.cpp, q8_0", "llama.cpp, q4_0"
    assert 0.0 < wide[q8].divergence < own[q8].divergence / 3
    assert wide[q4].divergence > 20 * wide[q8].divergence


@pytest.mark.slow
@pytest.mark.parametrize("model", [smollm2, gemma3], ids=["smollm2", "gemma3"])
def test_the_vocabulary_is_the_tokenizers(model: Any) -> None:
    found, (directory, gguf) = library(), files(model)
    tokenizer = open_text(ModelSpec("real", directory)).tokenizer
    with opened(found, gguf, 64, 64, {}) as llama:
        llama.check(range(llama.vocab_size), tokenizer)
        assert not [token_id for token_id in tokenizer.prefix_ids if token_id >= llama.vocab_size]
