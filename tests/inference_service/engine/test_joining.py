"""Arrays taken together: the same memory, wherever they lie, and every byte copied, in however many shares."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_service.engine import uploading
from inference_service.engine.uploading import copy_all, runs


@given(data=st.data())
def test_runs_are_the_same_memory(data: st.DataObject) -> None:
    """Wherever arrays lie: at equal distances forwards or backwards, or not; of other shapes; the same one again."""
    memory = np.random.default_rng(0).integers(0, 1 << 16, 4000, dtype=np.uint16)
    places = st.tuples(st.integers(0, 3000), st.sampled_from([(2, 3, 5, 7), (2, 3, 4, 7)]), st.booleans())
    step = data.draw(st.integers(-50, 50))
    at = data.draw(st.lists(places, min_size=1, max_size=6))
    at += [(1000 + step * number, (2, 3, 5, 7), False) for number in range(data.draw(st.integers(0, 5)))]
    parts = []
    for start, shape, reversed_layers in at:
        part = memory[start : start + np.prod(shape)].reshape(shape)
        parts.append(part[::-1] if reversed_layers else part)
    found = runs(parts)
    rows = [row for run in found for row in run]
    assert len(rows) == len(parts)
    assert all(np.array_equal(row, part) and np.shares_memory(row, part) for row, part in zip(rows, parts, strict=True))
    assert not any(run.flags.writeable for run in found)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("share", [1, 1000, 1 << 20])
@given(shapes=st.lists(st.tuples(*[st.integers(1, 6)] * 3), min_size=1, max_size=4), axis=st.integers(0, 2))
def test_every_share_is_copied(share: int, shared: bool, shapes: list[tuple[int, ...]], axis: int) -> None:
    before, uploading._SHARE = uploading._SHARE, share
    try:
        sources = [np.random.default_rng(number).random(shape) for number, shape in enumerate(shapes)]
        targets = [np.zeros((*shape[::-1],)).T for shape in shapes]
        copy_all(list(zip(targets, sources, strict=True)), axis, shared=shared)
    finally:
        uploading._SHARE = before
    assert all(np.array_equal(target, source) for target, source in zip(targets, sources, strict=True))


@pytest.mark.parametrize("shared", [False, True])
def test_a_copy_that_fails_is_told(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, "_SHARE", 1)
    with pytest.raises(ValueError, match="broadcast"):
        copy_all([(np.zeros((2, 3)), np.zeros((2, 3))), (np.zeros((2, 3)), np.zeros((2, 4)))], 0, shared=shared)
