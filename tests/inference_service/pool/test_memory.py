"""What models are promised; and the budget for decoding: an upper bound, which never shrinks when more or longer turns
come in.
"""

from dataclasses import replace

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.kv.hints import TurnHints
from agentmem.validation import AgentKey
from inference_service.engine.caches.buffers import STEP
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.quantization import FOUR_BITS
from inference_service.pool.admission import MemoryRequest
from inference_service.pool.kv import Space, Table
from inference_service.pool.memory import Budget, ModelMemory, Sizes

FULL = LayerGroup(tuple(range(5, 48, 6)), 8, 256, 256)
SLIDING = LayerGroup(tuple(layer for layer in range(48) if layer % 6 != 5), 8, 256, 256, window=1024)
GEMMA_12B = Geometry(16, mx.bfloat16, FOUR_BITS, FULL, SLIDING)
WINDOW, TOKEN = 141_557_760, 18_432
SHOWN = replace(GEMMA_12B, shows_arrays=True)
WINDOW_ARRAYS = (1024 + 512) * 8 * 512 * 2
"""A token of a layer is 8,192 bytes in 16 bits; a sliding layer's buffers hold its window and 512 tokens."""


def memory(weight_bytes: int = 8 << 30, geometry: Geometry = GEMMA_12B) -> ModelMemory:
    return ModelMemory(geometry, weight_bytes, Sizes(Space(8, 10), 1 << 30), TurnHints())


def test_spare_is_what_is_there_less_what_was_promised() -> None:
    there = 100
    budget = Budget(lambda: there)
    assert budget.spare() == 100
    growing = [10]
    budget.promise("model", lambda: growing[0])
    with budget.promised(50):
        assert budget.spare() == 40
        growing[0] = 20
        assert budget.spare() == 30
    assert budget.spare() == 80
    there = 5
    assert budget.spare() == -15, "others have taken what was promised"
    budget.withdraw("model")
    budget.withdraw("model")
    assert budget.spare() == 5


def test_one_row_is_charged_with_its_window_and_a_copy_and_what_its_buffers_may_have_too_much() -> None:
    assert memory()._batch_bytes([1000]) == 2 * ((1000 + STEP - 1) * TOKEN + WINDOW)


def test_rows_of_one_length_are_charged_each() -> None:
    assert memory()._batch_bytes([1000] * 5) == 5 * memory()._batch_bytes([1000])


def test_layers_that_see_arrays_are_charged_with_those_of_one_layer() -> None:
    """Of one with full attention, or of one with a sliding window where that takes more."""
    for tokens, arrays in ((1000, WINDOW_ARRAYS), (10_000, (10_000 + STEP - 1) * 8192)):
        packed = memory()._batch_bytes([tokens])
        assert memory(geometry=SHOWN)._batch_bytes([tokens]) == packed + 2 * arrays
        assert memory(geometry=SHOWN)._batch_bytes([tokens] * 3) == 3 * (packed + 2 * arrays)
    alone = replace(SHOWN, full=LayerGroup((), 0, 0, 0))
    assert memory(geometry=alone)._batch_bytes([10_000]) == 2 * (WINDOW + WINDOW_ARRAYS), "no full attention at all"


lengths = st.lists(st.integers(1, 100_000), min_size=1, max_size=12)


@given(lengths=lengths, weight_bytes=st.integers(0, 1 << 36))
def test_never_less_than_what_all_take_unpadded(lengths: list[int], weight_bytes: int) -> None:
    assert memory(weight_bytes)._batch_bytes(lengths) >= 2 * (sum(lengths) * TOKEN + len(lengths) * WINDOW)


@given(lengths=lengths, weight_bytes=st.integers(0, 1 << 36), shape=st.sampled_from([GEMMA_12B, SHOWN]), data=st.data())
def test_one_that_leaves_never_makes_it_dearer(
    lengths: list[int], weight_bytes: int, shape: Geometry, data: st.DataObject
) -> None:
    """Or a request that fits alone might never come in, and those that run might be more than was granted."""
    charged = memory(weight_bytes, shape)._batch_bytes
    without = list(lengths)
    without.pop(data.draw(st.sampled_from(range(len(lengths)))))
    if without:
        assert charged(without) <= charged(lengths)


@given(lengths=lengths, weight_bytes=st.integers(0, 1 << 36), shape=st.sampled_from([GEMMA_12B, SHOWN]), data=st.data())
def test_shorter_rows_never_take_more(
    lengths: list[int], weight_bytes: int, shape: Geometry, data: st.DataObject
) -> None:
    """Rows grow while they decode; what was charged is for the lengths that they can grow to."""
    charged = memory(weight_bytes, shape)._batch_bytes
    now = [data.draw(st.integers(1, length)) for length in lengths]
    assert charged(now) <= charged(lengths)


def test_the_check_is_of_idle_agents_and_what_is_in_flight(caplog: pytest.LogCaptureFixture) -> None:
    made = memory()
    table = Table(1, tuple(made.pool.full.allocate(1)))
    made.check_integrity([table])
    assert not made.pool.broken.is_set()
    made.check_integrity([])
    assert made.pool.broken.is_set()
    assert "does not add up" in caplog.text


def test_a_release_too_often_is_said_and_does_not_stop_the_cleaning_up(caplog: pytest.LogCaptureFixture) -> None:
    made = memory()
    table = Table(1, tuple(made.pool.full.allocate(1)))
    for _ in range(2):
        made.pool.release(table)
    assert made.pool.broken.is_set()
    assert "once too often" in caplog.text


async def test_nothing_is_checked_while_somebody_has_room() -> None:
    made = memory()
    room = await made.admission.reserve(MemoryRequest(AgentKey("n", "a", "m"), (), 1, keeps=True), seconds=0)
    made.check_integrity([])
    made.admission.release(room)
    made.check_integrity([])
    assert not made.pool.broken.is_set()
