"""Traces are few while rows and tables come and go, and rows that fill one up are nobody's: a pass without a model."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from inference_service.engine.device import on_cuda
from inference_service.engine.paged import arena
from inference_service.engine.paged.arena import DeviceArena
from inference_service.engine.paged.in_blocks import PassTables
from inference_service.engine.paged.layout import BlockLayout
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.engine.paged.sequence import SLACK, BlockTable, Sequence
from inference_service.engine.paged.traces import Traces

pytestmark = pytest.mark.sampled(3)


class Shown:
    """A layer's cache that shows what it was made of."""

    def __init__(self, of: Any, tables: list[Any]) -> None:
        self.offset, self.tables = of.offset, tables


class Plain:
    """Traces of a model whose logits are all that a row was given; `calls` counts how often the model was run.
    `shared` are the shares of the last run of it.
    """

    def __init__(self, *, states: bool = False, **options: Any) -> None:
        self.calls, self.arena = 0, DeviceArena(BlockLayout({"k": ("U32", (1, 1, 16, 4))}), 8)
        layers: Any = lambda of, tables: {0: Shown(of, tables)}  # noqa: E731
        self.traces = Traces(self.model, layers, [self.arena], [1] if states else [], **options)

    def model(self, tokens: mx.array, caches: Any) -> mx.array:
        self.calls += 1
        shown, *recurrent = caches
        [table] = shown.tables
        parts = [tokens[:, 0], shown.offset, table.rows.spans[:, 0], table.rows.spans[:, 1], table.rows.floors]
        parts += [table.rows.blocks.sum(axis=1)]
        self.shared = [] if (shares := table.shares(4)) is None else shares.tolist()
        for cache in recurrent:
            cache.cache[0] = cache.cache[0] + tokens
            parts.append(cache.cache[0][:, 0])
        return mx.stack([part.astype(mx.int64) for part in parts], axis=1)[:, None]

    def pass_of(self, *pieces: tuple[int, int, int]) -> Pass:
        """Return a pass of sequences with so many tokens, so many more, and so many that others have, too."""
        found = []
        for at, (length, n, shared) in enumerate(pieces):
            sequence = Sequence(BlockTable(16, [at % 8] * 8), length=length, shared=shared)
            found.append(Piece(sequence, n))
        return Pass(found, rows=True)

    def run(self, of: Pass, states: Any = ()) -> tuple[np.ndarray[Any, Any], Any]:
        tables = PassTables(of, self.arena, lambda sequence: sequence.full)
        logits, after = self.traces.run(of, mx.arange(of.tokens), [tables], states)
        return np.array(logits[:, 0]), after

    def wanted(self, of: Pass) -> np.ndarray[Any, Any]:
        rows = []
        for sequence, first, end, start in of.spans():
            for at in range(end - first):
                count = -(-(start + at + 1) // 16)
                base = int(self.arena.addresses(sequence.full.blocks[:count]).sum())
                rows.append([first + at, start + at, 0, start + at + 1, sequence.shared, base])
        return np.array(rows)


@pytest.fixture
def addressed(monkeypatch: pytest.MonkeyPatch) -> None:
    if not on_cuda():
        monkeypatch.setattr(arena, "address", lambda words: words.size << 20)


@pytest.mark.usefixtures("addressed")
def test_few_traces_are_made_while_rows_come_and_go() -> None:
    plain = Plain()
    for rows in (1, 2, 3, 4, 5, 8, 7, 4, 3, 9, 12, 1):
        of = plain.pass_of(*((5 * at, 1, at) for at in range(rows)))
        assert np.array_equal(plain.run(of)[0], plain.wanted(of))
    assert plain.calls == 5, "of 1, 2, 4, 8 and 12 rows"
    of = plain.pass_of((3, 4, 0), (20, 1, 0), (90, 3, 17))
    assert np.array_equal(plain.run(of)[0], plain.wanted(of)), "several rows of a sequence"
    assert plain.calls == 5


@pytest.mark.usefixtures("addressed")
def test_a_trace_holds_until_tables_have_eight_more_blocks() -> None:
    plain = Plain()
    for length in (1, 30, 16 * 8 - 1, 16 * 8, 16 * 9):
        sequence = Sequence(BlockTable(16, [0, 1, 2, 3] * 4), length=length)
        of = Pass([Piece(sequence, 1)], rows=True)
        assert np.array_equal(plain.run(of)[0], plain.wanted(of))
    assert plain.calls == 2


@pytest.mark.usefixtures("addressed")
def test_rows_that_fill_up_write_to_a_block_of_nobodys() -> None:
    plain, seen = Plain(), []

    def layers(of: Any, tables: list[Any]) -> Any:
        seen.extend(tables)
        return {0: Shown(of, tables)}

    plain.traces._layers = layers
    plain.traces._step = plain.traces._traced
    plain.run(plain.pass_of(*[(40, 1, 0)] * 5))
    [tables] = seen
    scratch = plain.traces._scratch[0].addresses([0])[0]
    assert tables.rows.blocks.shape == (8, 8)
    assert (np.array(tables.rows.blocks[5:]) == scratch).all()
    assert not (np.array(tables.rows.blocks[:5]) == scratch).any()
    assert tables.rows.spans[5:].tolist() == [[0, 1], [0, 2], [0, 3]], "as of a sequence"
    assert tables.rows.floors[5:].tolist() == [0] * 3


@pytest.mark.usefixtures("addressed")
def test_rows_of_short_prompts_attend_together_in_a_trace() -> None:
    plain, number = Plain(heads=[[4]]), []
    plain.traces._step = plain.traces._traced
    for pieces in (((40, 40, 0), (7, 1, 0), (3, 35, 0)), ((3, 70, 0),), ((3, 7, 0), (3, 7, 0), *[(9, 1, 0)] * 60)):
        of = plain.pass_of(*pieces)
        assert np.array_equal(plain.run(of)[0], plain.wanted(of))
        number.append(len(plain.shared))
        if len(pieces) == 3:
            shown = [share for share in plain.shared if share[3] != share[4]]
            assert shown[:4] == [[39, 0, 40, 0, 80], [39, 0, 40, 80, 160], [40, 40, 1, 0, 4], [75, 41, 35, 0, 80]]
            assert shown[4:] == [[75, 41, 35, 80, 140], [95, 76, 20, 0, 80]], "the last are nobody's"
    assert number == [68, 68, 0], "of 96 rows; pieces of few rows attend row by row"


@pytest.mark.slow
@pytest.mark.usefixtures("addressed")
def test_rows_of_recurrent_layers_are_not_filled_up() -> None:
    """A state that is made of nothing would be another sequence's work for each layer."""
    plain = Plain(states=True)
    for step in range(3):
        of = plain.pass_of(*[(step, 1, 0)] * 3)
        states = [[mx.array([[10.0], [20.0], [30.0]]) + step]]
        found, [[after]] = plain.run(of, states)
        assert after[:, 0].tolist() == [10 + step, 21 + step, 32 + step]
        assert found[:, -1].tolist() == [10 + step, 21 + step, 32 + step]
    assert plain.calls == 1


@pytest.mark.usefixtures("addressed")
def test_only_passes_over_few_rows_are_traced() -> None:
    plain = Plain()
    knows, of = plain.traces.knows, plain.pass_of
    assert knows(of((9, 1, 0))) and knows(of((9, 80, 0), (9, 1, 0)))
    assert not knows(of((0, SLACK + 1, 0), (9, 1, 0))), "a long prompt"
    assert not knows(of(*[(9, 1, 0)] * 65)), "pieces"
    assert not knows(of(*[(0, 209, 0)] * 4)), "rows"
    assert not knows(Pass([Piece(Sequence(BlockTable(16)), 1)])), "of one piece"
