"""Passes that are traced are those that are not: logits, packed KV and states.

Kernels that run as g++ compiles them cannot be in a trace of MLX's, so what is replayed is called again there: rows and
tables that are filled up, and caches of arrays alone, are the same. On an NVIDIA GPU it is a trace.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from benchmarks.loading import load
from inference_service.engine.cuda_kernel import available
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged.kernels import Kernels
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.engine.paged.store import KVStore
from inference_service.engine.paged.traces import _TracedTables
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.models.proof import traced_problem
from tests.inference_service.engine.batch_turns import computed
from tests.tiny_hybrids import write_falcon_h1, write_granite4, write_qwen3_next
from tests.tiny_models import write_deepseek2, write_gemma3, write_gpt_oss, write_llama
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
                computed(model.engine.model, store, (sequence, prompt), rows=False)
            self.stores.append(store)
            self.sequences.append(own)

    def step(self, number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Logits of the next token of all sequences, traced and not."""
        tokens = [[3 + (7 + row) * number % 29] for row in range(len(self.sequences[0]))]
        found, wanted = (
            computed(self.model.engine.model, store, *zip(own, tokens, strict=True), rows=True)
            for store, own in zip(self.stores, self.sequences, strict=True)
        )
        return np.array(found.astype(mx.float32)), np.array(wanted.astype(mx.float32))

    def held(self, which: int) -> list[np.ndarray[Any, Any]]:
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
    both = Two(loaded(write(tmp_path)), 2)
    for number in range(10):
        found, wanted = both.step(number)
        assert both.stores[0].traces is not None
        assert np.array_equal(found, wanted) or available()
    assert np.abs(found - wanted).max() <= 1e-2 * np.abs(wanted).max()
    if not available():
        assert all(np.array_equal(one, other) for one, other in zip(both.held(0), both.held(1), strict=True))
    assert [each.length for each in both.sequences[0]] == [260, 50]


def differing(both: Two) -> float:
    """The share of words of blocks that are not the same, in the worse block."""
    return max(float((one != other).mean()) for one, other in zip(both.held(0), both.held(1), strict=True))


@pytest.mark.slow
def test_passes_alternate_with_those_that_are_not_traced(tmp_path: Path, replayed: None) -> None:
    both = Two(loaded(write_narrow_gemma3(tmp_path)), 2)
    kept = both.stores[0].traces
    for number in range(6):
        both.stores[0].traces = kept if number % 3 else None
        found, wanted = both.step(number)
        assert np.array_equal(found, wanted) or available()
        if number == 3:
            for store, own in zip(both.stores, both.sequences, strict=True):
                computed(both.model.engine.model, store, (own[1], range(2, 22)), rows=False)
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
def test_anothers_table_in_traces_is_found_at_load(
    tmp_path: Path, replayed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(write_llama(tmp_path))
    assert not traced_problem(model.engine.model, model.geometry, TRACED)
    original = _TracedTables.__init__

    def faulty(self: _TracedTables, heads: Any, *of: mx.array) -> None:
        original(self, heads, *of)
        self.rows = self.rows._replace(blocks=mx.maximum(self.rows.blocks, self.rows.blocks.max(axis=0)))

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
    model = loaded(write(tmp_path))
    geometry, kernels = in_16_bits(model), Kernels(one=True, few=True, traced=True)
    original = _TracedTables.shares

    def of_another_row(self: _TracedTables, heads: int) -> mx.array | None:
        found = original(self, heads)
        return None if found is None else found * mx.array([0, 1, 1, 1, 1])

    assert not traced_problem(model.engine.model, geometry, kernels)
    monkeypatch.setattr(_TracedTables, "shares", of_another_row)
    assert "differ" in traced_problem(model.engine.model, geometry, kernels)


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
