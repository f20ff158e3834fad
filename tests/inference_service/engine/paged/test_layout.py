"""Where tensors lie in a block, and that every bit of them comes out as it went in."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.geometry import LayerGroup
from inference_service.engine.paged.layout import BlockLayout, BlockTensor
from inference_service.engine.quantization import KVFormat
from tests.inference_service.engine.paged.bits import (
    CASES,
    NUMBERS,
    Bits,
    Case,
    block_layout,
    cut,
    data_of,
    every_case,
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


def test_a_block_of_a_model_without_full_attention_is_empty() -> None:
    layout = BlockLayout({})
    assert (layout.words, layout.views(block_of(layout))) == (0, {})


@every_case
@pytest.mark.parametrize(("first", "tokens"), [(0, BLOCK_TOKENS), (0, 1), (17, 100), (BLOCK_TOKENS - 1, 1)])
def test_what_is_put_is_read_and_nothing_else_changes(case: Case, first: int, tokens: int) -> None:
    made = geometry(case)
    layout = block_layout(made)
    new = random_bits(made.block_shapes(tokens))
    layout.put(block := block_of(layout), new, first)
    found = layout.views(block)
    for name, wanted in new.items():
        assert found[name].dtype == wanted.dtype
        assert found[name][:, :, first : first + tokens].tobytes() == wanted.tobytes()
    untouched = layout.views(block_of(layout))
    for part in (slice(0, first), slice(first + tokens, BLOCK_TOKENS)):
        assert all(found[name][:, :, part].tobytes() == untouched[name][:, :, part].tobytes() for name in new)


@every_case
def test_the_first_tokens_are_read_as_a_file_has_them(case: Case) -> None:
    made = geometry(case)
    layout = block_layout(made)
    tensors = random_bits(made.block_shapes(BLOCK_TOKENS))
    layout.put(block := block_of(layout), tensors)
    for tokens in (1, 100, BLOCK_TOKENS):
        data = layout.read(block, tokens)
        shapes = made.block_shapes(tokens)
        as_arrays: Bits = {n: np.frombuffer(data[n], NUMBERS[dtype]).reshape(s) for n, (dtype, s) in shapes.items()}
        assert data_of(as_arrays) == data_of(cut(tensors, 0, tokens))


def test_what_is_read_is_a_copy_and_views_are_the_block() -> None:
    made = geometry(CASES[1])
    layout = block_layout(made)
    layout.put(block := block_of(layout), random_bits(made.block_shapes(BLOCK_TOKENS)))
    before, kept = layout.read(block, 10), block.copy()
    for view in layout.views(block).values():
        view[...] = 7
    assert not np.array_equal(block, kept)
    assert before == layout.read(kept, 10)


def test_a_tensor_that_is_too_short_by_a_part_of_a_word_is_filled_up() -> None:
    layout = BlockLayout({"a": ("BF16", (1, 1, 3, 1)), "b": ("U32", (1, 1, 3, 1))})
    assert layout.tensors == {"a": BlockTensor(0, "BF16", (1, 1, 3, 1)), "b": BlockTensor(16, "U32", (1, 1, 3, 1))}
    assert layout.nbytes == 32
