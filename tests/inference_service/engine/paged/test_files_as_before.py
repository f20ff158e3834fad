"""Files are those that the pool before this one wrote of the same tokens: what is on disk stays of use."""

import mlx.core as mx
import pytest

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.arenas import Arenas
from inference_service.engine.caches import QuantizedKVCache, SlidingQuantizedKVCache
from inference_service.engine.checkpoints import captured, tensors_of
from inference_service.engine.paged.store import KVStore
from tests.inference_service.engine.paged.bits import Case, every_case, geometry
from tests.inference_service.engine.paged.test_store import fed, random_kv


@every_case
@pytest.mark.parametrize("steps", [[50], [320, 1], [200, 1, 1, 450, 3], [700]])
def test_blocks_and_windows_are_the_same_bytes(case: Case, steps: list[int]) -> None:
    made = geometry(case, 100)
    kv, tokens = random_kv(made, 700), sum(steps)
    store, caches = KVStore(made, 4, 40), made.new_caches()
    sequence, at = store.sequence([2, 0, 3], range(40)), 0
    for n in steps:
        fed(store, sequence, kv, n)
        for layer, cache in enumerate(caches):
            assert isinstance(cache, QuantizedKVCache | SlidingQuantizedKVCache)
            cache.update_and_fetch(*(x[:, :, at : at + n] for x in kv[layer]))
            mx.eval(cache.state)
        at += n
    arenas = Arenas(made, 4, 40)
    arenas.write(caches, 0, [0, 1, 2][: -(-tokens // BLOCK_TOKENS)], [])
    for index, block in enumerate([2, 0, 3][: -(-tokens // BLOCK_TOKENS)]):
        count = min(BLOCK_TOKENS, tokens - index * BLOCK_TOKENS)
        assert store.read_block(block, count) == arenas.read_block(index, count)
    checkpoint, before = store.checkpoints.capture(sequence), captured(caches)
    assert checkpoint is not None
    assert before is not None
    assert checkpoint[:2] == (before.position, before.tokens)
    assert store.checkpoints.read(checkpoint) == tensors_of(before, None)
