"""Whose prompt is next."""

from hypothesis import given
from hypothesis import strategies as st

from inference_service.engine.scheduling import Waiting, next_prompt


def test_least_left_first_and_of_equals_the_first() -> None:
    assert next_prompt([Waiting(16_000, 0), Waiting(50, 0), Waiting(50, 0)]) == 1


def test_waiting_counts() -> None:
    assert next_prompt([Waiting(16_000, 250), Waiting(50, 0)]) == 0
    assert next_prompt([Waiting(16_000, 200), Waiting(50, 0)]) == 1


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=6))
def test_nobody_starves(remaining: list[int]) -> None:
    waited = [0] * len(remaining)
    served = set()
    for _ in range(2_000 * len(remaining)):
        states = [Waiting(r, w) for r, w in zip(remaining, waited, strict=True)]
        chosen = next_prompt([*states, Waiting(10, 0)])
        if chosen < len(remaining):
            served.add(chosen)
        waited = [0 if i == chosen else w + 1 for i, w in enumerate(waited)]
        if len(served) == len(remaining):
            return
    raise AssertionError(f"only {served} of {len(remaining)} were served")
