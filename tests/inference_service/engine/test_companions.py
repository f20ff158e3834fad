"""Which prompts that wait are computed in one batch."""

import itertools

import pytest
from inference_service.engine.batched_prefill import Prompt, companions

from inference_service.engine import batched_prefill


@pytest.mark.parametrize(
    ("lengths", "most", "chosen"),
    [
        ((500, 500, 500, 500, 500), 2048, [0, 1, 2, 3]),
        ((100, 900), 2048, [0]),  # most of it would be padding
        ((400, 100, 500, 90), 2048, [0, 2]),
        ((300, 290, 280), 512, [0]),
        ((300,), 2048, [0]),
        ((700, 710, 20), 1419, [0]),
        ((700, 710, 20), 1420, [0, 1]),
    ],
)
def test_which_prompts_are_computed_together(lengths: tuple[int, ...], most: int, chosen: list[int]) -> None:
    assert companions([Prompt(0, length) for length in lengths], 0, most) == chosen


@pytest.mark.parametrize(
    ("waiting", "chosen"),
    [
        ([(1000, 30), (900, 30), (1100, 25)], [0, 1, 2]),
        ([(1000, 30), (100, 30), (1000, 30)], [0, 2]),  # one that is short would be padding for the most part
        ([(1000, 30), (0, 1030)], [0]),
        ([(5, 30), (14, 15), (20, 30)], [0, 2]),  # all of its KV would be computed again
        ([(1000, 30), (0, 30)], [0]),
    ],
)
def test_which_next_turns_are_computed_together(waiting: list[tuple[int, int]], chosen: list[int]) -> None:
    assert companions([Prompt(*each) for each in waiting], 0, 256) == chosen


def test_a_batch_is_never_larger_than_a_chunk() -> None:
    for lengths in itertools.product((2, 30, 60, 100, 1000), repeat=4):
        for first in range(4):
            chosen = companions([Prompt(0, length) for length in lengths], first, 250)
            together = [lengths[index] for index in chosen]
            assert first in chosen and chosen == sorted(set(chosen))
            assert len(chosen) == 1 or len(together) * max(together) <= 250
            assert sum(together) >= batched_prefill._LEAST_FILLED * len(together) * max(together)
