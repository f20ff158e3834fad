"""Bytes to blocks, pieces, and K and V as arrays."""

from contextlib import nullcontext
from dataclasses import replace

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import FailedPrecondition
from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.kv.hints import TurnHints
from agentmem.validation import AgentKey
from inference_service.engine.geometry import Geometry, LayerGroup, StateArray, StateGroup
from inference_service.engine.quantization import FOUR_BITS
from inference_service.pool.admission import MemoryRequest
from inference_service.pool.kv import Space
from inference_service.pool.memory import (
    MOST_CONTEXTS,
    MOST_EMPTY_BLOCKS,
    TYPICAL_TOKENS,
    ModelMemory,
    Sizes,
    agents_that_fit,
    sizes,
)
from inference_service.settings import WorkerSettings

GIB = 1 << 30

LLAMA_8B = Geometry(32, mx.bfloat16, FOUR_BITS, LayerGroup(tuple(range(32)), 8, 128, 128))
"""36,864 bytes per token: 32 layers of 8 heads, 128 wide, K and V, 0.5625 bytes each."""

GEMMA_12B = Geometry(
    16,
    mx.bfloat16,
    FOUR_BITS,
    LayerGroup(tuple(range(5, 48, 6)), 8, 256, 256),
    LayerGroup(tuple(layer for layer in range(48) if layer % 6 != 5), 8, 256, 256, window=1024),
)
"""48 layers, every 6th with full attention. An agent of 4,096 tokens takes 72 MiB of blocks and 135 MiB of window."""


def test_gemma_3_12b_by_arithmetic() -> None:
    element = 4 / 8 + 2 * 2 / 64
    assert LLAMA_8B.bytes_per_token == 32 * 8 * (128 + 128) * element == 36_864
    assert GEMMA_12B.bytes_per_token == 8 * 8 * (256 + 256) * element == 18_432
    assert GEMMA_12B.checkpoint_bytes == 40 * 8 * (256 + 256) * (1024 + 256) * element == 117_964_800
    assert (GEMMA_12B.piece_tokens, GEMMA_12B.checkpoint_pieces) == (256, 6), "a window may begin inside of a piece"
    assert GEMMA_12B.piece_bytes * 5 == GEMMA_12B.checkpoint_bytes
    agent = TYPICAL_TOKENS * 18_432 + 6 * 23_592_960
    assert agent == 217_055_232
    assert sizes(80 * GIB, GEMMA_12B, 131_072, pool_bytes=10 * agent) == Sizes(Space(160, 60), 80 * GIB - 10 * agent)
    assert sizes(80 * GIB, GEMMA_12B, 131_072, 10 * agent - 1).space == Space(159, 59), "never more than there is"
    assert sizes(12 * GIB, GEMMA_12B, 131_072) == Sizes(Space(474, 178), 6 * GIB), "29.7 agents in 6 GiB"
    assert sizes(12 * GIB, GEMMA_12B, 131_072, arrays=False) == Sizes(Space(949, 356), 0), "and 59.4 in 12 GiB"


def test_a_hybrid_models_pool_is_split_for_typical_agents() -> None:
    def fit(length: int, typical: int) -> int:
        return agents_that_fit(sizes(0, GEMMA_12B, 131_072, 10_200_000_000, typical).space, GEMMA_12B, length)

    assert [fit(8192, 4096), fit(8192, 8192)] == [23, 34], "10.2 GB / (8192 x 18,432 + 141,557,760) is 34.9"
    assert [fit(4096, 4096), fit(4096, 8192)] == [46, 34]
    assert [sizes(80 * GIB, LLAMA_8B, 8192, GIB, typical) for typical in (256, 8192)] == 2 * [
        sizes(80 * GIB, LLAMA_8B, 8192, GIB)
    ]
    assert WorkerSettings.model_fields["typical_tokens"].default == TYPICAL_TOKENS


def test_a_window_of_another_width_is_kept_in_whole_pieces() -> None:
    group = LayerGroup((1,), 1, 64, 64, window=640)
    geometry = Geometry(1, mx.bfloat16, FOUR_BITS, LayerGroup((0,), 1, 64, 64), group)
    assert (geometry.piece_tokens, geometry.checkpoint_pieces) == (256, 5), "896 tokens in pieces of 256"
    narrow = replace(geometry, sliding=replace(group, window=100))
    assert (narrow.piece_tokens, narrow.checkpoint_pieces) == (64, 7), "356 tokens in pieces of a power of two"
    recurrent = replace(geometry, states=STATES)
    assert recurrent.checkpoint_pieces == 6, "and one for states"
    assert geometry.piece_bytes * 4 > geometry.checkpoint_bytes


@given(
    free=st.integers(0, 1 << 40),
    pool=st.none() | st.integers(0, 1 << 40),
    context=st.integers(1, 1 << 17),
    geometry=st.sampled_from([LLAMA_8B, GEMMA_12B]),
    arrays=st.booleans(),
)
def test_the_pool_takes_no_more_than_its_bytes_and_nearly_all(
    free: int, pool: int | None, context: int, geometry: Geometry, arrays: bool
) -> None:
    found = sizes(free, geometry, context, pool, arrays=arrays)
    block_bytes = BLOCK_TOKENS * geometry.bytes_per_token
    given_bytes = pool
    if given_bytes is None:
        checkpoint = geometry.checkpoint_pieces * geometry.piece_bytes
        least = min(free, TYPICAL_TOKENS * geometry.bytes_per_token + checkpoint)
        most = max(free // 2, least) if arrays else free
        given_bytes = min(most, MOST_CONTEXTS * (context * geometry.bytes_per_token + checkpoint))
    assert found.batch_bytes == (max(0, free - given_bytes) if arrays else 0), "what the pool leaves"
    assert found.space.pieces == 0 or (geometry is GEMMA_12B and given_bytes >= geometry.piece_bytes)
    taken = found.space.blocks * block_bytes + found.space.pieces * geometry.piece_bytes
    slack = 1e-9 * given_bytes
    assert taken <= given_bytes + slack
    assert taken > given_bytes - block_bytes - geometry.piece_bytes - slack
    assert min(found.space.blocks, found.space.pieces, found.batch_bytes) >= 0


def test_blocks_that_hold_nothing_are_enough_for_contexts_and_not_without_bound() -> None:
    nothing = LayerGroup((), 0, 0, 0)
    recurrent = Geometry(1, mx.float32, FOUR_BITS, nothing, states=STATES)
    assert (recurrent.checkpoint_bytes, recurrent.bytes_per_token) == (4000, 0)
    assert sizes(1 << 40, recurrent, 8192).space == Space(MOST_CONTEXTS * 32, MOST_CONTEXTS), "by default"
    assert sizes(0, recurrent, 8192, 3999).space == Space(0, 0)
    assert sizes(0, recurrent, 8191, 4000).space == Space(32, 1), "one agent, and all of its context"
    assert sizes(0, recurrent, 8192, GIB).space == Space(MOST_EMPTY_BLOCKS, GIB // 4000), "and not 8.6 million"
    assert sizes(0, recurrent, 1 << 25, GIB).space.blocks == 1 << 17, "a context longer than that is not refused"
    sliding = Geometry(1, mx.float32, FOUR_BITS, nothing, LayerGroup((0,), 1, 64, 64, window=256))
    assert sizes(0, sliding, 8192, 3 * 3 * sliding.piece_bytes).space == Space(3 * 32, 3 * 3)


STATES = StateGroup((48,), ((StateArray((1000,), "F32"),),))


@pytest.mark.parametrize(
    ("geometry", "pieces"),
    [(GEMMA_12B, 6), (replace(LLAMA_8B, states=STATES), 1), (replace(GEMMA_12B, states=STATES), 7)],
    ids=["sliding", "states", "both"],
)
async def test_checkpoints_that_a_turn_captures_are_admitted_with_it(geometry: Geometry, pieces: int) -> None:
    """As many as there is memory for; the turn gets in without any."""
    assert geometry.checkpoint_pieces == pieces
    request = MemoryRequest(AgentKey("n", "a", "m"), (), 512, checkpoints=3)
    for left, granted in ((3 * pieces, 3), (2 * pieces + pieces - 1, 2), (pieces - 1, 0), (0, 0), (-1, None)):
        memory = ModelMemory(geometry, Sizes(Space(2, pieces + left), 0), TurnHints())
        with nullcontext() if granted is not None else pytest.raises(FailedPrecondition):
            found = memory.admission.reserve_now(request)
            assert found is not None and found.checkpoints == granted
            assert len(found.pieces) == (1 + granted) * pieces


@pytest.mark.parametrize("geometry", [LLAMA_8B, GEMMA_12B], ids=["full", "hybrid"])
def test_weights_that_take_more_than_there_is_leave_nothing(geometry: Geometry) -> None:
    assert sizes(-GIB, geometry, 8192) == Sizes(Space(0, 0), 0)
