"""Bits of K and V apart, and such as do not fill words: what they take, and that every path and tier is right."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product, takewhile
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from inference_service.engine.arenas import Arena
from inference_service.engine.attention.speed import MEASURED, Figures

from agentmem.kv.bits import BITS, KVBits
from agentmem.kv.blockfile import BLOCK_TOKENS, header_bytes
from benchmarks.loading import load
from inference_service.domain import TokenEvent
from inference_service.engine.attention import DEQUANTIZE_FUSED, AttentionBackend, PathSpeeds, paths
from inference_service.engine.attention.self_test import decode_error, over_caches, prefill_error, tolerance
from inference_service.engine.cuda_kernel import available
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.models.capability import QuantizationSettings
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.portable.format import kv_geometry, places
from inference_service.storage.blocks import build
from tests.inference_service.engine import arena_bits, geometries
from tests.inference_service.engine.test_generation import TOLERANCE, bits, conversation, prompt, restored, turn
from tests.inference_service.storage.test_blocks import header, random_tensors
from tests.tiny_models import write_gemma3, write_llama

pytestmark = pytest.mark.sampled(5)

__all__ = ["prompt"]  # a fixture

PAIRS = [str(KVBits(*pair)) for pair in product(BITS, BITS)]
APART = ["3", "5/4", "6/3", "8/4"]
pairs = pytest.mark.parametrize("text", PAIRS)
groups = pytest.mark.parametrize("group_size", [32, 64])


def packed(made: Geometry, text: str, group_size: int) -> Geometry:
    return replace(made, format=replace(made.format.with_bits(text), group_size=group_size))


@pairs
@groups
def test_what_is_counted_is_what_is_taken(text: str, group_size: int) -> None:
    """Geometry's bytes, by which pool, quotas and `models show` count, are those of caches, arenas, files and exports.

    Widths of K and V differ, and by kind of layer.
    """
    made = packed(arena_bits.geometry(), text, group_size)
    full, sliding, tokens = made.full, made.sliding, 7
    assert sliding is not None
    k_bits, v_bits = KVBits.parse(text)
    of_a_head = 64 * k_bits / 8 + 128 * v_bits / 8 + (64 + 128) * 2 * 2 / group_size
    assert made.bytes_per_token == len(full.layers) * full.kv_heads * of_a_head

    def in_caches(group: LayerGroup) -> int:
        caches = made.new_caches()
        found = 0
        for layer in group.layers:
            k, v = (
                mx.random.normal((1, group.kv_heads, tokens, width)).astype(made.dtype)
                for width in (group.k_dim, group.v_dim)
            )
            found += sum(side.nbytes for side in caches[layer].update_and_fetch(k, v))
        return found

    window_token_bytes = made.piece_bytes // made.piece_tokens
    assert in_caches(full) == tokens * made.bytes_per_token
    assert in_caches(sliding) == tokens * window_token_bytes
    assert Arena(made, full, 3, BLOCK_TOKENS).nbytes == 3 * BLOCK_TOKENS * made.bytes_per_token
    assert Arena(made, sliding, 3, made.piece_tokens).nbytes == 3 * made.piece_bytes
    file = build(header(tokens), random_tensors(made, tokens), made).data
    assert len(file) - header_bytes(file) == tokens * made.bytes_per_token
    export = places(kv_geometry(made), tokens, (0,) * made.layers)
    assert max(place.end for place in export.values()) == tokens * (made.bytes_per_token + window_token_bytes)


@pytest.mark.slow("32-3/8", "32-6/4", "32-8/6", "64-3/4", "64-8/5", "64-8/6", "64-5/6", "64-6/4", "32-3/6")
@pytest.mark.sampled(5)
@pairs
@groups
def test_every_path_is_right(text: str, group_size: int) -> None:
    shape = packed(geometries.geometry(window=40, v_dim=128), text, group_size)
    ways = [paths.dequantized] if available() else [paths.dequantized, paths.unfused]
    assert max(decode_error(over_caches(way), shape) for way in ways) < tolerance(mx.float32)
    assert prefill_error(AttentionBackend().attend, shape) < tolerance(mx.float32)


def test_the_speed_of_each_is_its_own(tmp_path: Path) -> None:
    measured: list[Geometry] = []

    def measure(shape: Geometry, names: Sequence[str]) -> Figures:
        measured.append(shape)
        return {each: dict.fromkeys(names, 1.0) for each in MEASURED}

    speeds = PathSpeeds(tmp_path / "speeds.json", measure)
    shapes = [packed(geometries.geometry(), *how) for how in product(PAIRS, (32, 64))]
    for shape in [*shapes, *shapes]:
        speeds.of(shape, [DEQUANTIZE_FUSED])
    assert measured == shapes, "each of them once"


@pytest.fixture(scope="module", params=[write_llama, write_gemma3], ids=["llama", "gemma3"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=APART)
def model(request: pytest.FixtureRequest, directory: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    hashes = ContentHashes(tmp_path_factory.mktemp("hashes") / "weights.json")
    found = load("tiny", str(directory), quantization=QuantizationSettings(KVBits.parse(request.param)), hashes=hashes)
    assert str(found.geometry.format) == request.param
    return found


@pytest.mark.slow
def test_hot_is_warm_is_cold(model: LoadedModel, prompt: list[int]) -> None:
    hot = list(conversation(model, prompt, lambda caches, _: caches))
    warm = list(conversation(model, prompt, lambda caches, tokens: restored(model, caches, tokens)))
    assert [sequence for sequence, _, _ in hot] == [sequence for sequence, _, _ in warm]
    assert difference([events for _, events, _ in hot], [events for _, events, _ in warm]) < TOLERANCE
    assert bits(model, hot[-1][2]) == bits(model, warm[-1][2]), "packed KV differs"
    assert len({event.token_id for _, events, _ in hot for event in events}) >= 8, "an output that varies"
    cold = [turn(model, model.new_caches(), sequence, tokens=12)[1] for sequence, _, _ in hot]
    assert difference(cold, [events for _, events, _ in hot]) < TOLERANCE


def test_faulty_bits_are_found(model: LoadedModel, prompt: list[int]) -> None:
    geometry = model.geometry
    other = geometry.format.with_bits(
        "4" if str(geometry.format) == "3" else str(KVBits(geometry.format.v_bits, geometry.format.k_bits))
    )
    _, found = turn(model, model.new_caches(), prompt)
    _, faulty = turn(model, replace(geometry, format=other).new_caches(), prompt)
    assert difference([found], [faulty]) > 10 * TOLERANCE


def difference(found: list[list[TokenEvent]], wanted: list[list[TokenEvent]]) -> float:
    """The median difference between log-probabilities, up to where each two go apart.

    Prefill and decoding round differently. Where that rounds a code the other way, tokens after it differ by more.
    Infinite where all begin with another token.
    """
    pairs = [pair for both in zip(found, wanted, strict=True) for pair in takewhile(_same, zip(*both, strict=True))]
    return float(np.median([abs(one.logprob - other.logprob) for one, other in pairs])) if pairs else math.inf


def _same(pair: tuple[TokenEvent, TokenEvent]) -> bool:
    return pair[0].token_id == pair[1].token_id
