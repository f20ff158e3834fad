"""Sliding-window caches against a plain list of all that was ever written."""

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_service.engine.caches import SlidingQuantizedKVCache, sliding
from inference_service.engine.caches.sliding import MOST, SLACK
from inference_service.engine.codec import KVCodec
from inference_service.engine.quantization import PLAIN, KVFormat

WINDOW = 48
PACKED_AS_IT_IS = KVCodec(KVFormat(scheme=PLAIN))


def tokens_from(start: int, n: int, row: int = 0) -> mx.array:
    """K of n tokens from a position on: each of them can be told from all others."""
    positions = mx.arange(start, start + n).astype(mx.float32)
    return mx.broadcast_to((positions + 10_000 * row)[None, None, :, None], (1, 1, n, 64))


def positions(cache: SlidingQuantizedKVCache) -> list[int]:
    """The positions that are stored, read back from the values (a group of equal values quantizes exactly)."""
    keys, _ = cache.buffers.view()
    return [round(x) for x in mx.dequantize(*keys, group_size=64, bits=4)[0, 0, :, 0].tolist()]


def write(cache: SlidingQuantizedKVCache, n: int, row: int = 0) -> tuple[list[int], mx.array | None]:
    """Append n tokens; the positions that attention saw, and the mask."""
    mask = cache.make_mask(n)
    new = tokens_from(cache.offset, n, row)
    keys, _ = cache.update_and_fetch(new, new)
    return [round(x) for x in mx.dequantize(*keys, group_size=64, bits=4)[0, 0, :, 0].tolist()], mask


def check_trims(cache: SlidingQuantizedKVCache, row: int = 0) -> None:
    """Back to any of the last 256 tokens, and a query there sees its window."""
    end, stored = cache.offset, [position - 10_000 * row for position in positions(cache)]
    assert stored == list(range(end - len(stored), end))
    for back in range(min(end, SLACK) + 1):
        assert cache.can_trim(back), f"{back} tokens of {end}, of which {len(stored)} are stored"
        assert stored[0] <= max(0, end - back - cache.window)


steps = st.lists(st.one_of(st.just(1), st.integers(1, 400)), min_size=1, max_size=8)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(steps=steps, ones=st.integers(0, 100))
def test_every_query_sees_exactly_its_window(steps: list[int], ones: int) -> None:
    cache = SlidingQuantizedKVCache(WINDOW, PACKED_AS_IT_IS)
    for n in [*steps, *([1] * ones)]:
        start = cache.offset
        seen, mask = write(cache, n)
        for query in {0, n // 2, n - 1}:
            at = start + query
            visible = seen if mask is None else [p for p, m in zip(seen, mask[query].tolist(), strict=True) if m]
            assert visible == list(range(max(0, at - WINDOW + 1), at + 1))
        assert len(seen) <= WINDOW + n
        assert cache.buffers.filled <= WINDOW + MOST
        assert all(part.tokens <= -(-(WINDOW + MOST) // 256) * 256 for part in cache.buffers.both())
        check_trims(cache)


@settings(max_examples=20, deadline=None)
@given(window=st.sampled_from([1, 16, 64, 300, 512]), steps=steps)
def test_the_last_tokens_can_be_left_whatever_the_chunks(window: int, steps: list[int]) -> None:
    cache = SlidingQuantizedKVCache(window, PACKED_AS_IT_IS)
    for n in steps:
        write(cache, n)
    check_trims(cache)


def test_a_cut_to_the_window_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliding, "SLACK", 0)
    cache = SlidingQuantizedKVCache(WINDOW, PACKED_AS_IT_IS)
    write(cache, 600)
    with pytest.raises(AssertionError, match="tokens of 600"):
        check_trims(cache)


def test_small_trims_are_possible_and_others_refused() -> None:
    cache = SlidingQuantizedKVCache(WINDOW, PACKED_AS_IT_IS)
    write(cache, 1000)
    assert positions(cache) == list(range(1000 - WINDOW - SLACK, 1000))
    check_trims(cache)
    assert cache.can_trim(SLACK)
    assert not cache.can_trim(SLACK + 1)
    with pytest.raises(ValueError, match="window"):
        cache.trim(SLACK + 1)
    cache.trim(100)
    assert (cache.offset, positions(cache)[-1]) == (900, 899)
    seen, mask = write(cache, 1)
    assert mask is not None
    assert [p for p, m in zip(seen, mask[0].tolist(), strict=True) if m] == list(range(901 - WINDOW, 901))
    short = SlidingQuantizedKVCache(WINDOW, PACKED_AS_IT_IS)
    write(short, 30)
    assert short.can_trim(30)


def test_rows_come_and_go_and_keep_their_own() -> None:
    lengths = [1000, 10, 60, 299]
    singles = []
    for row, length in enumerate(lengths):
        cache = SlidingQuantizedKVCache(WINDOW, PACKED_AS_IT_IS)
        write(cache, length, row)
        singles.append(cache)
    batch = SlidingQuantizedKVCache.merge(singles[:2])
    batch.extend(SlidingQuantizedKVCache.merge(singles[2:3]))
    rows = [0, 1, 2]
    for step in range(MOST + 50):
        if step == 20:
            batch.extend(SlidingQuantizedKVCache.merge(singles[3:]))
            rows.append(3)
        if step == 120:
            batch.filter([1, 3, 2])  # the longest leaves, the others change places
            rows = [1, 3, 2]
        mask = batch.make_mask(1)
        offsets = batch.offsets
        new = mx.concatenate([tokens_from(offsets[i], 1, row) for i, row in enumerate(rows)], axis=0)
        keys, _ = batch.update_and_fetch(new, new)
        seen = mx.dequantize(*keys, group_size=64, bits=4)[:, 0, :, 0].tolist()
        for i, row in enumerate(rows):
            visible = (
                seen[i] if mask is None else [p for p, m in zip(seen[i], mask[i, 0, 0].tolist(), strict=True) if m]
            )
            at = offsets[i]
            wanted = [p + 10_000 * row for p in range(max(0, at - WINDOW + 1), at + 1)]
            assert [round(p) for p in visible] == wanted, (step, row)
        assert batch.buffers.filled <= WINDOW + MOST
    for i, row in enumerate(rows):
        alone = batch.extract(i)
        assert alone.offset == batch.offsets[i]
        check_trims(alone, row)
