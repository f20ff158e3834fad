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
from inference_service.engine.device import on_cuda
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged.kernels import Kernels
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.engine.paged.store import KVStore
from inference_service.engine.paged.traces import _TracedTables
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.models.proof import _Sequences, traced_problem
from tests.inference_service.engine.batch_rows import write_narrow_gemma3
from tests.tiny_hybrids import write_falcon_h1, write_granite4, write_qwen3_next
from tests.tiny_models import write_deepseek2, write_gpt_oss, write_llama
from tests.tiny_states import write_mamba2

pytestmark = pytest.mark.sampled(3)

Writer = Callable[[Path], Path]

ONE = Kernels(one=True)
TRACED = Kernels(one=True, traced=True)


def loaded(directory: Path) -> LoadedModel:
    return load("tiny", str(directory), pool_bytes=1 << 24, hashes=ContentHashes(directory / "hashes.json"))


def two(model: LoadedModel) -> tuple[_Sequences, _Sequences]:
    """Sequences after prompts, for traced passes and others, each in a store of its own."""
    prompts = [[1 + (5 + 2 * number) * at % 31 for at in range(length)] for number, length in enumerate((250, 40))]
    traced, other = (_Sequences(model.engine.model, model.geometry, each, prompts) for each in (TRACED, ONE))
    return traced, other


def step(number: int, *both: _Sequences) -> bool:
    """Return whether logits of the next tokens are the same."""
    found, wanted = (each.decoded([[3 + 7 * number % 29, 3 + 8 * number % 29]]) for each in both)
    return bool(mx.array_equal(found, wanted)) or (on_cuda() and bool(mx.allclose(found, wanted, atol=0.1)))


def same_kv(*both: _Sequences) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(*map(held, both), strict=True))


def held(of: _Sequences) -> list[np.ndarray[Any, Any]]:
    arenas = [arena for arena in (of._store.full, of._store.windows) if arena is not None]
    blocks = [arena._begun(block)().copy() for arena in arenas for block in range(arena._blocks)]
    states = [each.states.rows([each.row]) for each in of.sequences if each.states is not None]
    return blocks + [np.array(array.astype(mx.float32)) for each in states for array in each.arrays]


@pytest.mark.slow
@pytest.mark.parametrize(
    "write",
    [write_llama, write_narrow_gemma3, write_gpt_oss, write_qwen3_next, write_granite4, write_falcon_h1, write_mamba2],
)
def test_traced_passes_are_those_that_are_not(write: Writer, tmp_path: Path, replayed: None) -> None:
    traced, other = two(loaded(write(tmp_path)))
    assert all(step(number, traced, other) and traced.traced for number in range(10))
    assert same_kv(traced, other) or on_cuda()
    assert [each.length for each in traced.sequences] == [260, 50]


@pytest.mark.slow
def test_passes_alternate_with_those_that_are_not_traced(tmp_path: Path, replayed: None) -> None:
    traced, other = two(loaded(write_narrow_gemma3(tmp_path)))
    kept = traced._store.traces
    for number in range(6):
        traced._store.traces = kept if number % 3 else None
        assert step(number, traced, other)
        for each in (traced, other):
            if number == 3:
                each.run([(each.sequences[1], range(2, 22))], rows=False)
            if number == 4:
                each.sequences[1].trim(each.sequences[1].length - 3)
    assert same_kv(traced, other) or on_cuda()


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
