"""Where tensors lie in a block, and that every bit of them comes out as it went in."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.geometry import LayerGroup
from inference_service.engine.paged.layout import BlockLayout
from inference_service.engine.quantization import KVFormat
from tests.inference_service.engine.paged.bits import (
    block_layout,
    data_of,
    geometry,
    random_bits,
)

GARBAGE = 0xA5A5A5A5


def block_of(layout: BlockLayout) -> np.ndarray:
    return np.full(layout.words, GARBAGE, np.uint32)


@given(
    dtype=st.sampled_from([mx.float32, mx.bfloat16, mx.float16]),
    heads=st.integers(1, 5),
    bits=st.tuples(*[st.sampled_from([2, 3, 4, 5, 6, 8])] * 2),
    tokens=st.sampled_from([1, 2, 16, 33, 256]),
)
def test_tensors_lie_behind_each_other_and_aligned(
    dtype: mx.Dtype, heads: int, bits: tuple[int, int], tokens: int
) -> None:
    """Kernels load 16 bytes at once, and no tensor reaches into the next one."""
    layout = block_layout(geometry((dtype, heads, KVFormat(*bits, 32))), tokens)
    end = 0
    for tensor in layout.tensors.values():
        assert tensor.offset % 16 == 0
        assert end <= tensor.offset < end + 16
        end = tensor.offset + tensor.nbytes
    assert end <= layout.nbytes < end + 16
    assert layout.nbytes == 4 * layout.words


def test_tensors_of_several_groups_are_in_one_block() -> None:
    made = replace(geometry(), also_full=(LayerGroup((6, 7), 1, 128, 64),))
    layout = block_layout(made)
    assert list(layout.tensors) == list(made.block_shapes(BLOCK_TOKENS))
    tensors = random_bits(made.block_shapes(BLOCK_TOKENS))
    layout.put(block := block_of(layout), tensors)
    assert layout.read(block, BLOCK_TOKENS) == data_of(tensors)
