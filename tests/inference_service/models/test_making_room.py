"""Arithmetic alone decides which models go."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import FailedPrecondition
from inference_service.engine.computing import EstimatedCost
from inference_service.engine.geometry import Geometry, LayerGroup, StateArray, StateGroup
from inference_service.engine.quantization import FOUR_BITS
from inference_service.models.fitting import (
    MemoryLimits,
    Needs,
    Resident,
    agent_bytes,
    check_sizes,
    kv_bytes,
    make_room,
    needs_of,
)
from inference_service.pool.kv import Space
from inference_service.pool.memory import Sizes

GIB = 1 << 30
NOTHING = EstimatedCost(0, 0)


def needs(weights: int, activations: int = 0, least: int = 0, useful: int = 0) -> Needs:
    return Needs(weights, activations, least, max(least, useful))


def model(geometry: Geometry, cost: EstimatedCost = NOTHING) -> Any:
    return SimpleNamespace(model_id="m", geometry=geometry, own_context_length=4096, weight_bytes=10, cost=cost)


def test_pinned_ones_stay() -> None:
    pinned = Resident("a", 3, 1.0, pinned=True)
    assert make_room("c", needs(4), [pinned, Resident("b", 3, 2.0)], MemoryLimits(10, 2)) == ["b"]
    with pytest.raises(FailedPrecondition, match="unpin one of 'a', or raise --loaded-models"):
        make_room("c", needs(4), [pinned], MemoryLimits(10))


def test_others_rather_go_than_that_the_pool_is_of_no_use() -> None:
    assert make_room("b", needs(4, useful=4), [Resident("a", 3, 1.0)], MemoryLimits(10, 2)) == ["a"]


def test_what_is_missing_is_said() -> None:
    with pytest.raises(FailedPrecondition) as caught:
        make_room(
            "big", needs(12 * GIB, GIB, GIB), [Resident("a", 2 * GIB, 1.0, pinned=True)], MemoryLimits(10 * GIB, 2)
        )
    said = str(caught.value)
    assert "weights take 12.9 GB, computing 1.1 GB and the least KV 1.1 GB" in said
    assert "models may take 10.7 GB, of which pinned models ('a') take 2.1 GB; 6.4 GB are missing" in said


def test_the_least_kv_is_that_of_the_shortest_agent() -> None:
    plain = Geometry(4, mx.float32, FOUR_BITS, LayerGroup((0, 2), 2, 64, 64))
    states = StateGroup((1,), ((StateArray((3, 100), "F32"),),))
    block = 256 * plain.bytes_per_token
    window = LayerGroup((1,), 2, 64, 64, window=256)
    sliding = replace(plain, sliding=window)
    assert sliding.piece_bytes == block // 2
    for geometry, checkpoint in ((plain, 0), (replace(plain, states=states), 1200), (sliding, 3 * block // 2)):
        info = model(geometry)
        assert needs_of(info, 4096, GIB).least_kv_bytes == block + checkpoint
        assert needs_of(info, 4096, GIB).useful_kv_bytes == 4 * (16 * block + checkpoint)
        assert needs_of(info, 512, GIB).useful_kv_bytes == 4 * (2 * block + checkpoint)
        assert (given := needs_of(info, 4096, GIB, 5)).least_kv_bytes == given.useful_kv_bytes == 5, "what is set"
        assert agent_bytes(geometry, 4096) == 16 * block + checkpoint


def test_memory_in_which_no_request_could_run_is_refused() -> None:
    """A request runs without memory for K and V as arrays, too."""
    plain = Geometry(4, mx.float32, FOUR_BITS, LayerGroup((0, 2), 2, 64, 64))
    sliding = replace(plain, sliding=LayerGroup((1,), 2, 64, 64, window=256))
    for geometry, enough, little in (
        (plain, Space(1, 0), Space(0, 0)),
        (sliding, Space(1, 3), Space(0, 3)),
        (sliding, Space(1, 3), Space(1, 2)),
    ):
        check_sizes(model(geometry), Sizes(enough, 0))
        with pytest.raises(FailedPrecondition, match=rf"{little.blocks} blocks .*too little for one"):
            check_sizes(model(geometry), Sizes(little, GIB))


def test_computing_gets_a_fourth_of_what_weights_leave_unless_the_least_is_more() -> None:
    cost = EstimatedCost(token_bytes=10, key_bytes=100, pair_bytes=4)
    sized = model(Geometry(4, mx.float32, FOUR_BITS, LayerGroup((0, 2), 2, 64, 64)), cost)
    least, most = cost.least(100_000), cost.most(100_000)
    assert most > 3 * least
    for left, expected in ((100 * most, most), (8 * least, 2 * least), (least, least), (0, least)):
        assert needs_of(sized, 100_000, sized.weight_bytes + left).activation_bytes == expected


def test_memory_for_kv_is_shared_with_those_that_may_still_come() -> None:
    assert kv_bytes(needs(2, 1), [], MemoryLimits(10)) == 7
    assert kv_bytes(needs(2, 1), [], MemoryLimits(10, 2)) == 3
    assert kv_bytes(needs(2, 1), [Resident("a", 4, 0.0)], MemoryLimits(10, 2)) == 3
    assert kv_bytes(needs(2, 1), [Resident("a", 9, 0.0)], MemoryLimits(10, 2)) == 0


RESIDENTS = st.lists(st.tuples(st.integers(0, 10), st.floats(0, 100), st.booleans()), max_size=6).map(
    lambda each: [Resident(f"m{i}", *fields) for i, fields in enumerate(each)]
)


@given(RESIDENTS, st.integers(0, 20), st.integers(0, 5), st.integers(0, 5), st.integers(1, 40), st.integers(1, 7))
def test_what_is_decided_fits_and_spares_whom_it_can(
    residents: list[Resident], weights: int, least: int, more: int, usable: int, most: int
) -> None:
    wanted, limits = needs(weights, least=least, useful=least + more), MemoryLimits(usable, most)

    def fits(staying: list[Resident], useful: bool) -> bool:
        kv = wanted.useful_kv_bytes if useful else wanted.least_kv_bytes
        return len(staying) < most and weights + kv + sum(each.taken_bytes for each in staying) <= usable

    pinned = [each for each in residents if each.pinned]
    try:
        going = make_room("new", wanted, residents, limits)
    except FailedPrecondition:
        assert not fits(pinned, useful=False), "refused only where all that may go are not enough"
        return
    staying = [each for each in residents if each.model_id not in going]
    gone = [each for each in residents if each.model_id in going]
    assert set(pinned) <= set(staying)
    assert fits(staying, useful=True) or staying == pinned
    assert all(a.last_used <= b.last_used for a in gone for b in staying if not b.pinned)
    if gone:  # one less would not have been enough
        last = max(gone, key=lambda each: (each.last_used, going.index(each.model_id)))
        assert not fits([*staying, last], useful=True)
