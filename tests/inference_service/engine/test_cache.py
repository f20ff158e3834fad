"""The Q4 cache against one quantization of everything at once."""

import mlx.core as mx
import pytest

from inference_service.engine.cache import Quantized, QuantizedKVCache


def random(tokens: int, width: int, seed: int) -> mx.array:
    return mx.random.normal((1, 2, tokens, width), key=mx.random.key(seed))


def same(found: Quantized, wanted: mx.array, cache: QuantizedKVCache) -> bool:
    parts = mx.quantize(wanted, group_size=cache.group_size, bits=cache.bits)
    return all(mx.array_equal(a, b).item() for a, b in zip(found, parts, strict=True))


@pytest.mark.parametrize("steps", [[1] * 10, [300], [255, 1, 1, 255, 1], [256, 256], [700, 1, 1]])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 64), (8, 32)])
def test_appended_in_pieces_is_as_quantized_whole(steps: list[int], bits: int, group_size: int) -> None:
    keys, values = random(sum(steps), 64, 1), random(sum(steps), 128, 2)
    cache, at = QuantizedKVCache(bits, group_size), 0
    for step in steps:
        found = cache.update_and_fetch(keys[:, :, at : at + step], values[:, :, at : at + step])
        at += step
    assert cache.offset == cache.size() == sum(steps)
    assert same(found[0], keys, cache)
    assert same(found[1], values, cache)


def test_trimmed_tokens_are_overwritten() -> None:
    keys, values = random(400, 64, 1), random(400, 64, 2)
    cache = QuantizedKVCache()
    cache.update_and_fetch(keys, values)
    assert cache.trim(150) == 150
    other = random(20, 64, 3)
    found = cache.update_and_fetch(other, other)
    assert same(found[0], mx.concatenate([keys[:, :, :250], other], axis=2), cache)
    assert cache.trim(1000) == 270
    assert cache.offset == 0


def test_masks() -> None:
    cache = QuantizedKVCache()
    assert cache.empty()
    assert cache.make_mask(1) is None
    assert cache.make_mask(5) == "causal"
    with pytest.raises(NotImplementedError):
        cache.make_mask(5, window_size=4)
