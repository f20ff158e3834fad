"""How far apart checkpoints of a long prompt are, and which are kept."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.kv.ledger import Ledger
from inference_service.engine.scheduling import chunk_tokens
from inference_service.memory.checkpoints import checkpoint_candidates
from inference_service.memory.spacing import (
    MOST_BETWEEN,
    STEP,
    checkpoint_distance,
    kept_positions,
    periodic_positions,
    spacing,
)

distances = st.integers(0, 5).map(lambda doublings: STEP << doublings)
MB = 1_000_000


@pytest.mark.parametrize(
    ("checkpoint_bytes", "token_bytes", "distance"),
    [
        (0, 7_000, 0),
        (1, 7_000, STEP),
        (STEP * 7_000, 7_000, STEP),
        (STEP * 7_000 + 1, 7_000, 2 * STEP),
        (77 * MB, 6_912, 16_384),
        (153 * MB, 4_608, 65_536),
        (118 * MB, 18_432, 8192),
        (83 * MB, 0, STEP),
    ],
    ids=[
        *("full attention", "least", "as its blocks", "a byte more", "Qwen3-Next 80B", "Granite 4 Small"),
        *("Gemma 3 12B", "Mamba 2 2.7B"),
    ],
)
def test_the_distance(checkpoint_bytes: int, token_bytes: int, distance: int) -> None:
    assert checkpoint_distance(checkpoint_bytes, token_bytes) == distance


@given(checkpoint_bytes=st.integers(1, 1 << 32), token_bytes=st.integers(1, 1 << 20), tokens=st.integers(0, 1 << 20))
def test_checkpoints_are_no_more_bytes_than_blocks(checkpoint_bytes: int, token_bytes: int, tokens: int) -> None:
    distance = checkpoint_distance(checkpoint_bytes, token_bytes)
    assert len(periodic_positions(distance, tokens)) * checkpoint_bytes <= tokens * token_bytes
    halved = distance // 2
    assert distance == STEP or halved * token_bytes < checkpoint_bytes, "no further apart than that takes"


@given(distance=distances, tokens=st.integers(0, 1 << 20))
def test_a_prompt_is_left_at_most_a_spacing_behind_a_checkpoint(distance: int, tokens: int) -> None:
    positions = periodic_positions(distance, tokens)
    step = spacing(distance, tokens)
    assert len(positions) <= MOST_BETWEEN
    assert all(0 < at < tokens and at % step == 0 == at % STEP for at in positions)
    edges = [0, *positions, tokens]
    assert all(after - before <= step for before, after in pairwise(edges))
    assert step == distance or tokens // (step // 2) > MOST_BETWEEN, "no further apart than few checkpoints take"


def test_a_model_that_resumes_anywhere_has_none() -> None:
    assert periodic_positions(0, 100_000) == ()
    assert kept_positions((), 0) == ()


@given(tokens_per_second=st.floats(0, 1e6), seconds=st.sampled_from([0.25, 0.5]), tokens=st.integers(1, 40_000))
def test_no_chunk_is_cut_where_memory_bounds_it(tokens_per_second: float, seconds: float, tokens: int) -> None:
    """And where time does, there is no more than one chunk more per checkpoint."""

    def chunks(stops: tuple[int, ...]) -> int:
        position = count = 0
        while position < tokens:
            end = min(position + chunk_tokens(position, tokens_per_second, seconds), tokens)
            position, count = min([end, *(at for at in stops if position < at < end)]), count + 1
        return count

    stops = periodic_positions(STEP, tokens)
    assert chunks(stops) <= chunks(()) + len(stops)
    sizes = {chunk_tokens(position, tokens_per_second, seconds) for position in range(0, tokens, BLOCK_TOKENS)}
    if all(STEP % size == 0 for size in sizes):
        assert chunks(stops) == chunks(())


def test_what_an_agent_keeps() -> None:
    assert kept_positions([700, 256, 300, 900], STEP) == (256, 700, 900)
    assert kept_positions([5, 5], STEP) == (5,)
    short = [256, 300, 2048, 3990, 4000]
    assert kept_positions(short, STEP) == (256, 2048, 3990, 4000)
    assert kept_positions(short, 2 * STEP) == (256, 3990, 4000), "a state that is larger"
    grown = [256, 2048, 4096, 5990, 6000, 8190, 8200]
    assert kept_positions(grown, STEP) == (256, 4096, 8190, 8200), "twice as long, twice as far apart"
    assert kept_positions([9984, 10_000, 4096, 8192, 11_990, 12_000], STEP) == (4096, 8192, 9984, 11_990, 12_000)


@given(distance=distances, each=st.sets(st.integers(1, 200_000), min_size=1, max_size=40))
def test_few_are_kept_and_always_the_same_ones(distance: int, each: set[int]) -> None:
    kept = kept_positions(each, distance)
    assert set(kept) <= each
    assert {*sorted(each)[-2:]} <= set(kept)
    assert len(kept) <= 1 + MOST_BETWEEN + 2
    assert kept_positions(kept, distance) == kept
    later = max(each) + 5_000
    assert kept_positions({*kept, later}, distance) == kept_positions({*each, later}, distance), "as if none had gone"


def test_an_agent_of_short_turns_keeps_some_of_their_ends_and_looks_for_them() -> None:
    """Wherever it is cut, it goes on from at most a spacing before: nothing had to be captured on the way."""
    ledger = Ledger()
    kept: tuple[int, ...] = ()
    for turn in range(120):
        added = [turn % 251 for _ in range(170)]
        ledger = ledger.followed_by(added, [b"x"] * len(added), "h", 20)
        kept = kept_positions([*kept, len(ledger)], STEP)
    step = spacing(STEP, len(ledger))
    assert len(kept) <= 1 + MOST_BETWEEN + 2
    for cut in range(step + 200, len(ledger), 331):
        sequence = [*ledger.token_ids.tolist()[:cut], 252, 253]
        found = checkpoint_candidates("f" * 64, "ns", ledger, cut, sequence, (), exact=True)
        at = max(c.position for c in found if c.position in kept)
        assert cut - at < step + 200


def test_a_look_up_needs_not_know_the_distance() -> None:
    sequence = tuple(range(40_000))
    found = {each.position for each in checkpoint_candidates("f" * 64, "ns", Ledger(), 0, sequence, ())}
    for doublings in range(5):
        assert set(periodic_positions(STEP << doublings, len(sequence))) <= found
