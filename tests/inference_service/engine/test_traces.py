"""Passes that are traced are those that are not: logits, packed KV and states; faults in them are found. And traces are
few, are given up where they fail, and keep no memory.

Kernels that run as g++ compiles them cannot be in a trace of MLX's, so what is replayed is called again there: rows and
tables that are filled up, and caches of arrays alone, are the same. On an NVIDIA GPU it is a trace.
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama

from benchmarks.loading import load
from inference_service.domain import TokenEvent
from inference_service.engine import cuda_encoding
from inference_service.engine.cuda_kernel import available
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged import arena, traces
from inference_service.engine.paged.arena import Arena, DeviceArena
from inference_service.engine.paged.in_blocks import BlockKVCache, PassTables
from inference_service.engine.paged.kernels import Tables
from inference_service.engine.paged.layout import BlockLayout
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.engine.paged.sequence import SLACK, BlockTable, Sequence
from inference_service.engine.paged.store import Kernels, KVStore
from inference_service.engine.paged.traces import Traces, _TracedTables
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.models.proof import traced_problem
from tests.inference_service.engine.batch_turns import begin, prompt_of, run
from tests.tiny_hybrids import write_falcon_h1, write_granite4, write_qwen3_next
from tests.tiny_models import write_deepseek2, write_gemma3, write_gpt_oss, write_llama
from tests.tiny_own_attention import write_stablelm
from tests.tiny_states import write_mamba2

pytestmark = pytest.mark.sampled(3)

Writer = Callable[[Path], Path]

WINDOW = 16
ONE = Kernels(one=True)
TRACED = Kernels(one=True, traced=True)


def write_narrow_gemma3(directory: Path) -> Path:
    return write_gemma3(directory, window=WINDOW)


def loaded(directory: Path) -> LoadedModel:
    return load("tiny", str(directory), pool_bytes=1 << 24, hashes=ContentHashes(directory / "hashes.json"))


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
        self.traces = Traces(self.model, layers, [self.arena], [(1, 1)] if states else [], **options)

    def model(self, tokens: mx.array, caches: Any) -> mx.array:
        self.calls += 1
        shown, *recurrent = caches
        [table] = shown.tables
        parts = [tokens[:, 0], shown.offset, table.rows.spans[:, 0], table.rows.spans[:, 1], table.floors]
        parts += [table.rows.blocks.sum(axis=1)]
        self.shared = [] if (shares := table.shares(4)) is None else shares.tolist()
        for cache in recurrent:
            cache.cache[0] = cache.cache[0] + tokens
            parts.append(cache.cache[0][:, 0])
        return mx.stack([part.astype(mx.int64) for part in parts], axis=1)[:, None]

    def pass_of(self, *pieces: tuple[int, int, int]) -> Pass:
        """Of sequences that have so many tokens, so many more and so many that others have, too."""
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
    if not available():
        monkeypatch.setattr(arena, "address", lambda words: words.size << 20)


@pytest.mark.usefixtures("addressed")
def test_few_traces_are_made_while_rows_come_and_go() -> None:
    """By MLX: rows are filled up, and what is replayed is what a row was given."""
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
    assert tables.floors[5:].tolist() == [0] * 3


@pytest.mark.usefixtures("addressed")
def test_rows_of_short_prompts_attend_together_in_a_trace() -> None:
    """Also those that fill it up; its shares are as many whatever the lengths of the prompts are."""
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


@pytest.fixture
def in_blocks(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """K and V are in blocks, as on NVIDIA GPUs."""
    monkeypatch.setattr(cuda_encoding, "available", lambda: True)
    monkeypatch.setattr(Arena, "of", staticmethod(DeviceArena))


@pytest.fixture
def replayed(in_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if not available():
        monkeypatch.setattr(mx, "compile", lambda step: step)


class Two:
    """A model's passes over sequences behind prompts, traced and not, each in a store of its own."""

    LENGTHS = (250, 40, 17)

    def __init__(self, model: LoadedModel, rows: int) -> None:
        self.model, self.stores, self.sequences = model, [], []
        for traced in (True, False):
            store = KVStore(model.geometry, 2 * rows, 48 * rows, model.codecs, kernels=ONE)
            if traced:
                store.trace(model.engine.model.computed)
            own = [store.sequence([rows + at, at], range(at * 48, (at + 1) * 48)) for at in range(rows)]  # in no order
            for number, (sequence, length) in enumerate(zip(own, self.LENGTHS, strict=False)):
                prompt = [1 + (5 + 2 * number) * at % 31 for at in range(length)]
                self.compute(store, [(sequence, prompt)], rows=False)
            self.stores.append(store)
            self.sequences.append(own)

    def compute(self, store: KVStore, pieces: Any, *, rows: bool = True) -> np.ndarray[Any, Any]:
        of = Pass([Piece(sequence, len(tokens)) for sequence, tokens in pieces], rows=rows)
        ids = mx.array([token for _, tokens in pieces for token in tokens])
        logits, written = store.compute(self.model.engine.model, of, ids)
        mx.eval(logits, written.state)
        return np.array(logits.astype(mx.float32))

    def step(self, number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Logits of the next token of all sequences, traced and not."""
        tokens = [[3 + (7 + row) * number % 29] for row in range(len(self.sequences[0]))]
        found, wanted = (
            self.compute(store, list(zip(own, tokens, strict=True)))
            for store, own in zip(self.stores, self.sequences, strict=True)
        )
        return found, wanted

    def held(self, which: int) -> list[np.ndarray[Any, Any]]:
        """All blocks as they are, and states."""
        store, own = self.stores[which], self.sequences[which]
        arenas = [(store.full, 2 * len(own)), *([(store.windows, 48 * len(own))] if store.windows else [])]
        blocks = [each._begun(block)().copy() for each, count in arenas for block in range(count)]
        states = [each.states.rows([each.row]) for each in own if each.states is not None]
        return blocks + [np.array(array.astype(mx.float32)) for each in states for array in each.arrays]


@pytest.mark.slow
@pytest.mark.parametrize(
    "write",
    [
        write_llama,
        write_narrow_gemma3,
        write_gpt_oss,
        write_qwen3_next,
        write_granite4,
        write_falcon_h1,
        write_mamba2,
    ],
)
def test_traced_passes_are_those_that_are_not(write: Writer, tmp_path: Path, replayed: None) -> None:
    """In rows of different lengths, of which one goes on in another block; blocks and states bit for bit."""
    both = Two(loaded(write(tmp_path)), 2)
    for number in range(10):
        found, wanted = both.step(number)
        assert both.stores[0].traces is not None
        assert np.array_equal(found, wanted) or available()
    assert np.abs(found - wanted).max() <= 1e-2 * np.abs(wanted).max()
    if not available():
        assert all(np.array_equal(one, other) for one, other in zip(both.held(0), both.held(1), strict=True))
    assert [each.length for each in both.sequences[0]] == [260, 50]


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, write_narrow_gemma3])
def test_rows_that_are_filled_up_change_nothing_for_others(write: Writer, tmp_path: Path, replayed: None) -> None:
    """Three rows, which are traced as four; products of another number of rows may be rounded otherwise."""
    both = Two(loaded(write(tmp_path)), 3)
    for number in range(4):
        found, wanted = both.step(number)
        assert np.abs(found - wanted).max() <= (1e-2 if available() else 1e-4) * np.abs(wanted).max()
    assert differing(both) < 0.01


def differing(both: Two) -> float:
    """The share of words of blocks that are not the same, in the worse block."""
    return max(float((one != other).mean()) for one, other in zip(both.held(0), both.held(1), strict=True))


@pytest.mark.slow
def test_a_row_that_fills_up_and_writes_to_a_real_block_is_found(
    tmp_path: Path, replayed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Two(loaded(write_llama(tmp_path)), 3)
    assert both.stores[0].traces is not None
    monkeypatch.setattr(both.stores[0].traces, "_scratch", [both.stores[0].full])
    both.step(0)
    first = [block for block in range(6) if (both.held(0)[block] != both.held(1)[block]).any()]
    assert 0 in first, "its first token is another"


@pytest.mark.slow
def test_passes_alternate_with_those_that_are_not_traced(tmp_path: Path, replayed: None) -> None:
    """Each goes on where the other one ended; behind chunks, too, and where tokens were dropped."""
    both = Two(loaded(write_narrow_gemma3(tmp_path)), 2)
    kept = both.stores[0].traces
    for number in range(6):
        both.stores[0].traces = kept if number % 3 else None
        found, wanted = both.step(number)
        assert np.array_equal(found, wanted) or available()
        if number == 3:
            for store, own in zip(both.stores, both.sequences, strict=True):
                both.compute(store, [(own[1], list(range(2, 22)))], rows=False)
        if number == 4:
            for own in both.sequences:
                own[1].trim(own[1].length - 3)
    if not available():
        assert not differing(both)


@pytest.mark.slow
def test_passes_that_are_no_rows_or_have_empty_states_are_not_traced(tmp_path: Path, replayed: None) -> None:
    model = loaded(write_falcon_h1(tmp_path))
    store = KVStore(model.geometry, 2, 8, model.codecs, kernels=ONE)
    store.trace(model.engine.model.computed)
    sequence, empty = store.sequence([0], range(4)), store.sequence([1], range(4, 8))
    assert store.step(Pass([Piece(empty, 1)], rows=True), mx.array([3])) is None
    assert store.step(Pass([Piece(sequence, 1)]), mx.array([3])) is None
    assert (sequence.length, empty.length) == (0, 0)


@pytest.mark.slow
def test_layers_that_attend_by_themselves_are_not_traced(tmp_path: Path, replayed: None) -> None:
    """They see arrays, whose shapes change with each pass."""
    model = loaded(write_stablelm(tmp_path))
    assert model.geometry.shows_arrays
    assert "arrays" in traced_problem(model.engine.model, model.geometry, Kernels(traced=True))


def blind_to_itself(tables: Tables) -> Tables:
    return tables._replace(spans=mx.maximum(tables.spans - mx.array([0, 1], dtype=mx.int32), mx.array([0, 1])))


def others_table(tables: Tables) -> Tables:
    return tables._replace(blocks=mx.maximum(tables.blocks, tables.blocks.max(axis=0)))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [blind_to_itself, others_table])
def test_faults_of_tables_in_traces_are_found_at_load(
    fault: Callable[[Tables], Tables], tmp_path: Path, replayed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(write_llama(tmp_path))
    assert not traced_problem(model.engine.model, model.geometry, TRACED)
    original = _TracedTables.__init__

    def faulty(self: _TracedTables, heads: Any, *of: mx.array) -> None:
        original(self, heads, *of)
        self.rows = fault(self.rows)

    monkeypatch.setattr(_TracedTables, "__init__", faulty)
    assert "differ" in traced_problem(model.engine.model, model.geometry, TRACED)


def in_16_bits(model: LoadedModel) -> Geometry:
    model.engine.model.model.set_dtype(mx.float16)
    model.engine.model.rides = True
    return replace(model.geometry, dtype=mx.float16)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, write_narrow_gemma3])
def test_short_prompts_in_traces_are_proved_at_load(
    write: Writer, tmp_path: Path, replayed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 16 bits, as the kernel for several queries wants them."""
    model = loaded(write(tmp_path))
    geometry, kernels = in_16_bits(model), Kernels(one=True, few=True, traced=True)
    asked: list[int] = []
    original = _TracedTables.shares

    def faulty(fault: Callable[[mx.array], mx.array]) -> Callable[[_TracedTables, int], mx.array | None]:
        def shares(self: _TracedTables, heads: int) -> mx.array | None:
            found = original(self, heads)
            asked.append(found is not None)
            return found if found is None else fault(found)

        return shares

    monkeypatch.setattr(_TracedTables, "shares", faulty(lambda shares: shares))
    assert not traced_problem(model.engine.model, geometry, kernels)
    assert any(asked)
    others_row = mx.array([0, 1, 1, 1, 1])
    monkeypatch.setattr(_TracedTables, "shares", faulty(lambda shares: shares * others_row))
    assert "differ" in traced_problem(model.engine.model, geometry, kernels)


@pytest.mark.slow
def test_a_window_that_is_too_wide_in_traces_is_found(
    tmp_path: Path, replayed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the comparison above: it proves what the one at load may not."""
    both, original = Two(loaded(write_narrow_gemma3(tmp_path)), 2), BlockKVCache.__init__

    def faulty(self: BlockKVCache, of: Any, *more: Any, **options: Any) -> None:
        original(self, of, *more, **options)
        if isinstance(of, traces._Traced) and self.window:
            self._group = replace(self._group, window=self.window + 1)

    monkeypatch.setattr(BlockKVCache, "__init__", faulty)
    found, wanted = both.step(0)
    assert np.abs(found - wanted).max() > 1e-3 * np.abs(wanted).max()


@pytest.mark.slow
def test_passes_over_latents_are_those_that_are_not_traced(tmp_path: Path, replayed: None) -> None:
    """In 16 bits, as the kernel over latents wants it; but for the experts, of which MLX has no such products on a CPU.
    They come last.
    """
    model = loaded(write_deepseek2(tmp_path))
    network = model.engine.model.model
    network.set_dtype(mx.float16)
    network.model.layers[-1].mlp.switch_mlp.set_dtype(mx.float32)
    geometry = replace(model.geometry, dtype=mx.float16)
    assert geometry.latents
    assert not traced_problem(model.engine.model, geometry, TRACED)


def in_kernels(directory: Path) -> LoadedModel:
    """A model whose pool is in blocks for kernels."""
    model = loaded(directory)
    model.arenas.kernels = ONE
    return model


def traced(model: LoadedModel) -> Traces:
    """Have its passes traced, on whatever device."""
    model.arenas.trace(model.engine.model.computed)
    assert model.arenas.traces is not None
    return model.arenas.traces


def rows_run(traces: Traces, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of rows of each traced pass."""
    runs: list[int] = []
    original = traces.run

    def run(of: Pass, *arguments: Any) -> Any:
        runs.append(of.tokens)
        return original(of, *arguments)

    monkeypatch.setattr(traces, "run", run)
    return runs


Told = list[list[TokenEvent]]


def two_turns(model: LoadedModel) -> Told:
    turns = [begin(model, prompt_of(model, number, repeats)) for number, repeats in enumerate((3, 1))]
    run(model)
    return [turn.events for turn in turns]


def same(found: Told, wanted: Told) -> bool:
    """But for rounding of products, which rows that are filled up change."""
    assert [len(events) for events in found] == [len(events) for events in wanted]
    pairs = [pair for both in zip(found, wanted, strict=True) for pair in zip(*both, strict=True)]
    errors = np.array([(one.logprob, other.logprob) for one, other in pairs], np.float64)
    alike = [one.token_id == other.token_id for one, other in pairs]
    return all(alike) and bool(np.abs(errors[:, 0] - errors[:, 1]).max() < (0.1 if available() else 1e-3))


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, write_narrow_gemma3, write_falcon_h1])
def test_turns_that_join_and_leave_in_the_middle_are_what_they_are_without(
    write: Writer, tmp_path: Path, replayed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = in_kernels(write(tmp_path))

    def told() -> Told:
        turns = [begin(model, prompt_of(model, number, each), 9 + 8 * number) for number, each in enumerate((3, 1))]
        for number, repeats in ((2, 5), (3, 2)):
            for _ in range(7):
                model.engine.step()
            turns.append(begin(model, prompt_of(model, number, repeats), 12))
        run(model)
        return [turn.events for turn in turns]

    wanted = told()
    assert [len(events) for events in wanted] == [9, 17, 12, 12]
    kept = traced(model)
    runs = rows_run(kept, monkeypatch)
    assert same(told(), wanted)
    assert model.arenas.traces is kept and len(runs) > len(set(runs))


@pytest.mark.slow
@pytest.mark.usefixtures("in_blocks")
def test_what_cannot_be_traced_goes_on_without_and_it_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A Llama that looks at values."""
    original = llama.MLP.__call__
    monkeypatch.setattr(llama.MLP, "__call__", lambda self, x: original(self, x if x.max().item() < 1e9 else -x))
    model = in_kernels(write_llama(tmp_path))
    wanted = two_turns(model)
    traced(model)
    for _ in range(2):
        assert same(two_turns(model), wanted)
    assert model.arenas.traces is None
    assert [record.levelname for record in caplog.records if "not traced any more" in record.message] == ["WARNING"]


class Failing:
    """A network's traces, of which one pass fails when it is computed."""

    def __init__(self, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures, self._words = 0, words
        original = Traces.run

        def run(traced: Traces, *of: Any) -> Any:
            found = original(traced, *of)
            if not self.failures:
                self.failures += 1
                raise RuntimeError(self._words)
            return found

        monkeypatch.setattr(Traces, "run", run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "goes_on"),
    [
        ("a kernel of the trace does not compile", False),
        ("cudaMallocAsync(&data, size, stream) failed: out of memory", True),
    ],
)
def test_a_traced_pass_that_fails_is_the_last_unless_there_was_no_memory(
    words: str, goes_on: bool, tmp_path: Path, replayed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it found missing may be there for the next one; it says nothing about the trace. Its turns go on."""
    model, failing = in_kernels(write_llama(tmp_path)), Failing(words, monkeypatch)
    wanted = two_turns(model)
    traced(model)
    assert same(two_turns(model), wanted)
    assert failing.failures
    assert (model.arenas.traces is not None) == goes_on


@pytest.mark.slow
@pytest.mark.usefixtures("replayed")
def test_a_traced_pass_that_fails_when_it_is_computed_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLX computes later: a kernel of the trace that does not compile is found behind it."""
    model = in_kernels(write_llama(tmp_path))
    wanted, kept = two_turns(model), traced(model)
    computed: Any = mx.async_eval
    runs = rows_run(kept, monkeypatch)
    failures: list[int] = []

    def failing(*arrays: Any) -> None:
        if not failures and len(runs) > 1:
            failures.append(1)
            raise RuntimeError("a kernel of the trace does not compile")
        computed(*arrays)

    monkeypatch.setattr(mx, "async_eval", failing)
    assert same(two_turns(model), wanted)
    assert failures
    assert model.arenas.traces is None


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, write_falcon_h1])
def test_traces_go_with_their_model(write: Writer, tmp_path: Path, replayed: None, uncollected: None) -> None:
    """At once: weights, which traces hold too, would be in the next model's way until a garbage collection."""
    write(tmp_path)

    def used() -> int:
        served = in_kernels(tmp_path)
        traced(served)
        two_turns(served)
        assert served.arenas.traces is not None
        served.release()
        return served.weight_bytes

    used()
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    weight_bytes = used()
    mx.clear_cache()
    assert mx.get_active_memory() - before < weight_bytes / 100
