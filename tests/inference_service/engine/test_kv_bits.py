"""Bits of K and V apart, and such as do not fill words: what they take, and that every path and tier is right."""

import math
from dataclasses import replace
from itertools import product, takewhile
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from agentmem.kv.bits import BITS, KVBits
from agentmem.kv.blockfile import BLOCK_TOKENS, header_bytes
from benchmarks.loading import load
from inference_service.domain import TokenEvent
from inference_service.engine.attention.reference import random_codec
from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.paged.store import KVStore
from inference_service.engine.quantization import FOUR_BITS
from inference_service.models.capability import QuantizationSettings
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.storage.blocks import write_block
from tests.inference_service.directories import written_by
from tests.inference_service.engine import geometries
from tests.inference_service.engine.batch_turns import Turn, differing, rewrite
from tests.inference_service.engine.batch_turns import packed as in_blocks
from tests.inference_service.engine.test_generation import TOLERANCE, conversation, prompt, restored, turn
from tests.inference_service.storage.test_blocks import header, random_tensors
from tests.tiny_models import write_gemma3, write_llama

pytestmark = pytest.mark.sampled(5)

__all__ = ["prompt"]  # a fixture

PAIRS = [*(str(KVBits(*pair)) for pair in product(BITS, BITS)), "4w6", "5/4w8/3"]
APART = ["3", "5/4", "6/3", "8/4", "4w6"]
pairs = pytest.mark.parametrize("text", PAIRS)
groups = pytest.mark.parametrize("group_size", [32, 64])


def packed(made: Geometry, text: str, group_size: int) -> Geometry:
    return replace(made, format=replace(made.format.with_bits(text), group_size=group_size))


@pairs
@groups
def test_what_is_counted_is_what_is_taken(tmp_path: Path, text: str, group_size: int) -> None:
    """Geometry's bytes, by which pool, quotas and `models show` count, are what KV, pool and files take.

    Widths of K and V differ, and by kind of layer.
    """
    full, sliding = LayerGroup((0, 2, 4), 2, 64, 128), LayerGroup((1, 3), 2, 128, 64, 64)
    made = packed(Geometry(4, mx.bfloat16, FOUR_BITS, full, sliding), text, group_size)
    tokens = 7
    k_bits, v_bits, _ = KVBits.parse(text)
    of_a_head = 64 * k_bits / 8 + 128 * v_bits / 8 + (64 + 128) * 2 * 2 / group_size
    assert made.bytes_per_token == len(full.layers) * full.kv_heads * of_a_head

    def when_packed(group: LayerGroup) -> int:
        k, v = (
            mx.random.normal((1, group.kv_heads, tokens, width)).astype(made.dtype)
            for width in (group.k_dim, group.v_dim)
        )
        return len(group.layers) * sum(side.nbytes for side in KVCodec(made.format_of(group)).encode(k, v))

    window_token_bytes = made.piece_bytes // made.piece_tokens
    assert when_packed(full) == tokens * made.bytes_per_token
    assert when_packed(sliding) == tokens * window_token_bytes
    assert KVStore(made, 3, 5).nbytes == 3 * BLOCK_TOKENS * made.bytes_per_token + 5 * made.piece_bytes
    path = tmp_path / "block"
    write_block(str(path), header(tokens), random_tensors(made, tokens), made)
    file = path.read_bytes()
    assert len(file) - header_bytes(file) == tokens * made.bytes_per_token


@pairs
@groups
def test_all_are_packed_and_unpacked_right(text: str, group_size: int) -> None:
    """Only rounding is lost: 1 / sqrt(12) of a step, but for what the least squared error gains."""
    shape = packed(geometries.geometry(v_dim=128), text, group_size)
    k, v = geometries.random(1, 2, 65, 64), geometries.random(1, 2, 65, 128, seed=1)
    codec = random_codec(shape.format, (geometries.random(2, 64, seed=2), geometries.random(2, 128, seed=3)), 4)
    stored = codec.encode(k, v)
    for x, found, parts in zip((k, v), codec.decode(*stored), stored, strict=True):
        assert mx.square(found - x).mean().sqrt() < 1.2 * mx.abs(parts.scales).mean() / 12**0.5


directory = written_by([write_llama, write_gemma3])


@pytest.fixture(scope="module", params=APART)
def model(request: pytest.FixtureRequest, directory: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    hashes = ContentHashes(tmp_path_factory.mktemp("hashes") / "weights.json")
    found = load("tiny", str(directory), quantization=QuantizationSettings(KVBits.parse(request.param)), hashes=hashes)
    assert str(found.geometry.format) == (request.param if found.geometry.sliding else request.param.partition("w")[0])
    return found


def told(turns: list[Turn]) -> list[list[TokenEvent]]:
    return [each.events for each in turns]


@pytest.mark.slow
def test_hot_is_warm_is_cold(model: LoadedModel, prompt: list[int]) -> None:
    hot = list(conversation(model, prompt))
    warm = list(conversation(model, prompt, goes_on=restored))
    assert [each.job.sequence for each in hot] == [each.job.sequence for each in warm]
    assert difference(told(hot), told(warm)) < TOLERANCE
    assert not differing(in_blocks(model, hot[-1].kv), in_blocks(model, warm[-1].kv)), "packed KV differs"
    assert len({token for each in hot for token in each.said}) >= 8, "an output that varies"
    cold = [turn(model, list(each.job.sequence), tokens=12) for each in hot]
    assert difference(told(cold), told(hot)) < TOLERANCE
    rewrite(model, hot[0].kv, lambda tensor: tensor[::-1])  # Layers change places.
    wrong = turn(model, list(hot[1].job.sequence), tokens=12, warm=hot[0].kv)
    assert difference(told([wrong]), told(hot[1:2])) > 10 * TOLERANCE


def difference(found: list[list[TokenEvent]], wanted: list[list[TokenEvent]]) -> float:
    """The median difference between log-probabilities, up to where each two go apart.

    Prefill and decoding round differently. Where that rounds a code the other way, tokens after it differ by more.
    Infinite where all begin with another token.
    """
    pairs = [pair for both in zip(found, wanted, strict=True) for pair in takewhile(_same, zip(*both, strict=True))]
    both = np.array([(one.logprob, other.logprob) for one, other in pairs], np.float64)
    return float(np.median(np.abs(both[:, 0] - both[:, 1]))) if pairs else math.inf


def _same(pair: tuple[TokenEvent, TokenEvent]) -> bool:
    return pair[0].token_id == pair[1].token_id
