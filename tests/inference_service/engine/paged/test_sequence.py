"""Where a sequence's KV is: tables of blocks, windows that slide, states that are rows of several, and K and V as
arrays, each beside a plain list of all tokens.
"""

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_service.engine.paged.sequence import (
    SLACK,
    BlockTable,
    Sequence,
    States,
    WindowTable,
    WorkingKV,
    gathered,
)

WINDOW = 48


@pytest.mark.parametrize("first", [0, 64])
def test_a_table_says_which_block_has_a_token(first: int) -> None:
    table = BlockTable(16, [7, 3, 9], first)
    assert [table.at(first + at) for at in (0, 15, 16, 32, 47)] == [7, 7, 3, 9, 9]
    assert table.of(first, first + 48) == [7, 3, 9]
    assert table.of(first + 15, first + 17) == [7, 3]
    assert table.of(first + 16, first + 32) == [3]
    assert table.of(first + 16, first + 16) == []
    assert table.kept_from(first + 40) == first


def tables(tokens: int, window: int, checkpoints: int) -> WindowTable:
    """With as many pieces as a turn has that captures so many checkpoints, besides the one at its end."""
    most = WindowTable(tokens, window=window).most
    return WindowTable(tokens, window=window, spare=list(range((1 + checkpoints) * most)))


steps = st.lists(st.one_of(st.just(1), st.integers(1, SLACK), st.integers(1, 700)), min_size=1, max_size=40)


@given(tokens=st.sampled_from([1, 16, 64, 256]), window=st.integers(1, 600), steps=steps)
def test_a_window_slides_within_its_own_blocks(tokens: int, window: int, steps: list[int]) -> None:
    table = tables(tokens, window, 0)
    own, end, owner = set(table.spare), 0, dict[int, int]()
    for n in steps:
        end += n
        table.slide(end)
        assert table.first % tokens == 0
        assert table.first <= max(0, end - window - SLACK)
        assert end <= table.first + len(table.blocks) * tokens < end + tokens
        assert sorted([*table.blocks, *table.spare]) == sorted(own)
        assert len(table.blocks) <= table.most
        for at, block in enumerate(table.blocks):
            begin = table.first + at * tokens
            assert owner.get(block, begin) <= begin, "a token's block does not change while it is kept"
            owner[block] = begin


@settings(deadline=None)
@given(data=st.data(), tokens=st.sampled_from([16, 64, 256]), window=st.sampled_from([1, 48, 300]))
def test_checkpoints_keep_their_blocks_and_there_are_enough(data: st.DataObject, tokens: int, window: int) -> None:
    captures = data.draw(st.integers(0, 3))
    table, end = tables(tokens, window, captures + 1), 0
    kept: list[list[int]] = []
    latest: list[int] | None = None
    for n in data.draw(steps):
        end += n
        table.slide(end)
        held = {block for blocks in [*kept, latest or []] for block in blocks}
        assert held.isdisjoint(table.spare)
        if data.draw(st.booleans()):
            if latest is not None:
                table.take_back(latest)
            assert table.left(end) >= table.most, "there is enough to go on with"
            latest = table.share(end)
            if len(kept) < captures and data.draw(st.booleans()):
                kept.append(latest)
                latest = None
    assert len(table.share(end)) <= table.most
    if latest is not None:
        table.take_back(latest)
    assert len(set(table.spare)) == len(table.spare)


def test_what_is_taken_back_is_used_again_but_not_what_others_have() -> None:
    table = tables(16, WINDOW, 2)
    table.slide(320)
    first = table.share(320)
    table.slide(336)
    second = table.share(336)
    before = list(table.spare)
    table.take_back(second)
    assert table.spare == before, "its blocks are the window's still, or in the first one"
    table.slide(2000)
    assert set(second) - set(first) <= {*table.spare, *table.blocks}
    assert set(first).isdisjoint({*table.spare, *table.blocks})
    table.take_back(first)
    assert set(first) <= set(table.spare)
    theirs = WindowTable(16, window=WINDOW, spare=list(range(50, 90)), blocks=[1, 2])
    theirs.take_back(theirs.share(32))
    theirs.slide(1000)
    assert {1, 2}.isdisjoint({*theirs.spare, *theirs.blocks}), "what it began with is another's"


def sequence_of(length: int, window: int = WINDOW, tokens: int = 16) -> Sequence:
    table = tables(tokens, window, 0)
    table.slide(length)
    return Sequence(BlockTable(256, list(range(20))), length, window=table)


@pytest.mark.parametrize("length", [30, 304, 305, 1000, 4096])
def test_the_last_tokens_can_be_left(length: int) -> None:
    for back in range(min(length, SLACK) + 1):
        sequence = sequence_of(length)
        assert sequence.window is not None
        sequence.trim(length - back)
        assert (sequence.length, sequence.lost) == (length - back, False)
        assert sequence.window.first <= max(0, length - back - WINDOW)
    if length > SLACK + WINDOW + 16:
        far = sequence_of(length)
        far.trim(length - SLACK - 17)
        assert far.lost
        far.trim(length - SLACK - 18)
        assert far.lost, "what is lost stays lost"


def test_what_is_in_front_of_what_was_restored_does_not_count() -> None:
    sequence = Sequence(BlockTable(256), 400, window=WindowTable(64, list(range(6)), 64, window=WINDOW, written=100))
    assert sequence.window is not None
    assert sequence.window.kept_from(400) == 100
    assert sequence.window.kept_from(100 + WINDOW + SLACK + 5) == 105
    assert sequence.window.share(380) == list(range(5))
    sequence.trim(100 + WINDOW)
    assert not sequence.lost
    sequence.trim(100 + WINDOW - 1)
    assert sequence.lost


def test_what_was_left_is_written_again() -> None:
    sequence = sequence_of(1000)
    table = sequence.window
    assert table is not None
    sequence.trim(900)
    blocks = list(table.blocks)
    table.slide(905)
    assert table.blocks == blocks
    assert table.at(904) == blocks[(904 - table.first) // 16]
    table.slide(1100)
    assert table.first <= 1100 - WINDOW - SLACK


@pytest.mark.parametrize(("back", "lost"), [(SLACK, False), (SLACK + 2, False), (SLACK + 3, True), (SLACK + 40, True)])
def test_what_arrays_do_not_reach_is_lost(back: int, lost: bool) -> None:
    """Blocks do, by some tokens of a piece."""
    sequence, working = sequence_of(1000, tokens=64), WorkingKV(WINDOW)
    for position, n in ((0, 600), (600, 399), (999, 1)):
        assert shows(working, position, n, min(position, WINDOW - 1))
    sequence.working[0] = working
    assert sequence.window is not None
    assert sequence.window.first <= 1000 - SLACK - 40 - WINDOW
    sequence.trim(1000 - back)
    assert sequence.lost == lost
    if not lost:
        assert shows(working, 1000 - back, 1, WINDOW - 1)


def test_states_cannot_be_trimmed() -> None:
    sequence = Sequence(BlockTable(256), 40, states=state(1))
    sequence.trim(40)
    assert not sequence.lost
    sequence.trim(39)
    assert sequence.lost


def state(*seeds: int) -> States:
    """Two layers, of which one has two arrays, for a row each."""
    rows = [(mx.random.normal((3, 8), key=mx.random.key(seed)), mx.full((2,), seed)) for seed in seeds]
    big, small = (mx.stack([row[at] for row in rows]) for at in (0, 1))
    return States([[big, small], [2 * big]])


def equal(one: States, other: States) -> bool:
    return all(mx.array_equal(a, b).item() for a, b in zip(one.arrays, other.arrays, strict=True))


def of(states: States, row: int) -> Sequence:
    return Sequence(BlockTable(256), 10, states=states, row=row)


def test_states_are_rows_in_the_order_of_their_sequences() -> None:
    together, alone = state(1, 2, 3), state(4)
    one, two, three, four = *(of(together, row) for row in range(3)), of(alone, 0)
    assert gathered([one, two, three]) is together, "as they lie"
    for sequences, seeds in (
        ([two, one, three], (2, 1, 3)),
        ([one, two], (1, 2)),
        ([three, four], (3, 4)),
        ([four, one, two, three], (4, 1, 2, 3)),
        ([two], (2,)),
        ([four], (4,)),
    ):
        assert equal(gathered(sequences), state(*seeds))


def test_sequences_without_a_state_are_together_only_with_such() -> None:
    nothing = States([[None, None], [None]])
    assert nothing.empty
    new, other, old = of(nothing, 0), of(States([[None, None], [None]]), 0), of(state(1), 0)
    assert gathered([new, other]).empty
    for sequences in ([new, old], [old, new]):
        with pytest.raises(ValueError, match="without a state"):
            gathered(sequences)


def tokens_from(start: int, n: int) -> mx.array:
    """K of n tokens from a position on: each of them can be told from all others."""
    return mx.broadcast_to(mx.arange(start, start + n).astype(mx.float32)[None, None, :, None], (1, 2, n, 4))


def shows(working: WorkingKV, position: int, n: int, seen: int) -> bool:
    """Return whether n more tokens are shown themselves, and as many before them."""
    new = tokens_from(position, n)
    k, v = working.append(new, -new)
    wanted = tokens_from(position - seen, seen + n)
    return bool((mx.array_equal(k, wanted) and mx.array_equal(v, -wanted)).item())


@given(window=st.sampled_from([0, 1, 16, 48, 300, 512]), data=st.data())
@settings(deadline=None)
def test_arrays_show_what_is_seen_whatever_the_chunks(window: int, data: st.DataObject) -> None:
    working, length, longest = WorkingKV(window), 0, 0
    for n in data.draw(st.lists(st.one_of(st.just(1), st.integers(1, 600)), min_size=1, max_size=12)):
        room = working.growth(n)
        before = sum(array.nbytes for array in working.state)
        assert shows(working, length, n, min(length, window - 1) if window else length)
        if room:
            assert room == before
            assert sum(array.nbytes for array in working.state) > before
        length += n
        if window:
            assert working.filled <= window + SLACK + max(n, SLACK)
        longest = max(longest, length)
        back = data.draw(st.integers(0, length - max(0, longest - SLACK)))
        working.trim(back)
        length -= back
