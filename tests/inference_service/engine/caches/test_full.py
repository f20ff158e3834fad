"""Full-attention caches against one quantization of everything at once."""

import mlx.core as mx
import pytest

from inference_service.engine.caches import BatchQuantizedKVCache, QuantizedKVCache
from inference_service.engine.caches.views import View
from inference_service.engine.codec import KVCodec
from inference_service.engine.quantization import PLAIN, KVFormat, Quantized


def random(tokens: int, width: int, seed: int, rows: int = 1) -> mx.array:
    return mx.random.normal((rows, 2, tokens, width), key=mx.random.key(seed))


def same(found: Quantized, wanted: mx.array, cache: QuantizedKVCache | BatchQuantizedKVCache) -> bool:
    parts = mx.quantize(wanted, **cache.codec.format.k._asdict())
    return all(mx.array_equal(a, b).item() for a, b in zip(found, parts, strict=True))


def filled(tokens: int, seed: int) -> tuple[QuantizedKVCache, mx.array]:
    cache, kv = QuantizedKVCache(KVCodec(KVFormat(scheme=PLAIN))), random(tokens, 64, seed)
    cache.update_and_fetch(kv, kv)
    return cache, kv


@pytest.mark.parametrize("steps", [[1] * 10, [300], [255, 1, 1, 255, 1], [256, 256], [700, 1, 1]])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 64), (8, 32)])
def test_appended_in_pieces_is_as_quantized_whole(steps: list[int], bits: int, group_size: int) -> None:
    keys, values = random(sum(steps), 64, 1), random(sum(steps), 128, 2)
    cache, at = QuantizedKVCache(KVCodec(KVFormat(bits, bits, group_size, PLAIN))), 0
    for step in steps:
        found = cache.update_and_fetch(keys[:, :, at : at + step], values[:, :, at : at + step])
        at += step
    assert cache.offset == cache.size() == sum(steps)
    assert same(found[0], keys, cache)
    assert same(found[1], values, cache)


def test_trimmed_tokens_are_overwritten() -> None:
    cache, keys = filled(400, 1)
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
    batch = QuantizedKVCache.merge([filled(3, 1)[0], filled(5, 2)[0]])
    for each in (cache, batch, View(cache), View(batch)):
        with pytest.raises(ValueError, match="make_cache has to give such layers a RotatingKVCache"):
            each.make_mask(5, window_size=4)
    mask = batch.make_mask(1)
    assert mask is not None
    assert mask[:, 0, 0].tolist() == [[False] * 2 + [True] * 4, [True] * 6]
    assert QuantizedKVCache.merge([filled(3, 1)[0]]).make_mask(1) is None


def test_rows_come_and_go_and_keep_their_own() -> None:
    lengths = [300, 20, 511]
    singles = [filled(tokens, seed) for seed, tokens in enumerate(lengths)]
    batch = QuantizedKVCache.merge([cache for cache, _ in singles[:2]])
    batch.extend(QuantizedKVCache.merge([singles[2][0]]))
    kv = [kv for _, kv in singles]
    step = random(1, 64, 9, rows=3)
    batch.update_and_fetch(step, step)
    kv = [mx.concatenate([each, step[i : i + 1]], axis=2) for i, each in enumerate(kv)]
    assert batch.offset.tolist() == [301, 21, 512]
    batch.filter([1, 0])  # the longest row leaves first, and the others change places
    kv = [kv[1], kv[0]]
    assert batch.offset.tolist() == [21, 301]
    assert batch.buffers.filled == 301, "padding that nobody needs is gone"
    step = random(1, 64, 10, rows=2)
    batch.update_and_fetch(step, step)
    for row, each in enumerate(kv):
        alone = batch.extract(row)
        assert alone.offset == each.shape[2] + 1
        assert same(alone.buffers.view()[0], mx.concatenate([each, step[row : row + 1]], axis=2), alone)
        assert same(alone.buffers.view()[1], mx.concatenate([each, step[row : row + 1]], axis=2), alone)


@pytest.mark.parametrize("longest", [5, 255, 256, 700])
def test_rows_are_brought_together_in_one_copy_with_room_for_the_next_token(longest: int) -> None:
    batch = QuantizedKVCache.merge([filled(longest, 1)[0], filled(3, 2)[0]])
    mx.eval(batch.state)
    alone = QuantizedKVCache.merge([filled(longest - 2, 3)[0]])
    mx.eval(alone.state)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    batch.extend(alone)
    mx.eval(batch.state)
    assert mx.get_peak_memory() - before <= batch.nbytes + (1 << 16)
    capacity = batch.buffers.both()[0].tokens
    token = random(1, 64, 4, rows=3)
    batch.update_and_fetch(token, token)
    assert batch.buffers.both()[0].tokens == capacity > longest


def test_empty_batches_join_filled_ones_only_whole() -> None:
    with pytest.raises(ValueError, match="empty"):
        QuantizedKVCache.merge([QuantizedKVCache(), filled(3, 1)[0]])
    batch = QuantizedKVCache.merge([QuantizedKVCache(), QuantizedKVCache()])
    kv = random(4, 64, 2, rows=2)
    batch.update_and_fetch(kv, kv)
    assert batch.offset.tolist() == [4, 4]
