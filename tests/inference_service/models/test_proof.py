"""A load proves a model: sequences that are wrong together are computed one by one, and prompts that are
wrong as rows do not ride along. And it chooses how products of rows are computed."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from benchmarks.loading import load
from inference_service.engine.device import on_cuda
from inference_service.engine.paged import passes
from inference_service.engine.paged.alone import SequenceKVCache
from inference_service.engine.paged.passes import ArrayKVCache, Pass, Pieces, StatesCache
from inference_service.engine.paged.store import NO_KERNELS
from inference_service.engine.product_speeds import Case, Figures, ProductSpeeds
from inference_service.engine.products import DEQUANTIZED, FLATTENED, GIVEN, Shape, quantized_layers
from inference_service.models import proof
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.models.proof import order_problem, prove, riding_problem, rows_problem
from tests.inference_service.engine.batch_turns import begin, prompt_of, right, run
from tests.inference_service.engine.test_traces import loaded
from tests.oracle import Oracle
from tests.tiny_hybrids import write_falcon_h1, write_granite4, write_qwen3_next
from tests.tiny_models import write_deepseek2, write_gemma3, write_gpt_oss, write_llama, write_quantized
from tests.tiny_own_attention import (
    write_deepseek3,
    write_deepseek32,
    write_gemma2,
    write_kimi_linear,
    write_stablelm,
)
from tests.tiny_states import write_mamba2

pytestmark = pytest.mark.sampled(3)

TOGETHER = [write_llama, write_gemma3, write_qwen3_next, write_deepseek3, write_kimi_linear, write_stablelm]
ALL = [*TOGETHER, write_gpt_oss, write_deepseek2, write_deepseek32, write_granite4, write_falcon_h1, write_mamba2]


Writer = Callable[[Path], Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Writer], LoadedModel]:
    return cache(lambda write: loaded(write(tmp_path_factory.mktemp("model"))))


def test_what_is_refused_is_reported_of_models_without_k_and_v_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "rows_problem", lambda *_: "they differ")
    model = load("m", str(write_mamba2(tmp_path / "m")), hashes=ContentHashes(tmp_path / "h.json"))
    [report] = model.paths
    assert (report.phase, report.path) == ("decode", "states") and "together they differ" in report.note


def test_prompts_that_are_refused_as_rows_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "riding_problem", lambda *_: "they differ")
    model = load("m", str(write_llama(tmp_path / "m")), hashes=ContentHashes(tmp_path / "h.json"))
    notes = {report.phase: report.note for report in model.paths}
    assert notes["prefill"].startswith("prompts one by one, because as rows they differ; ")
    assert not model.engine.model.rides


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("write", ALL)
def test_most_models_decode_together_and_prompts_ride_along(
    write: Writer, models: Callable[[Writer], LoadedModel]
) -> None:
    """Recurrent layers take tokens in order."""
    model = models(write)
    assert model.engine.model.rows_together or write not in TOGETHER
    assert model.engine.model.rides == (model.geometry.states is None)


@pytest.mark.slow
def test_sequences_that_are_wrong_together_are_decoded_one_by_one(tmp_path: Path) -> None:
    directory = write_gemma2(tmp_path / "model")
    model, oracle = loaded(directory), Oracle(directory)
    notes = [report.note for report in model.paths if report.phase == "decode"]
    assert notes and "sequences one by one" in notes[0]

    def turns(*repeats: int) -> list[bool]:
        begun = [begin(model, prompt_of(model, number, each)) for number, each in enumerate(repeats)]
        run(model)
        return [right(oracle, turn) for turn in begun]

    assert turns(3, 1, 2) == [True, True, True]
    model.engine.model.rows_together = True
    assert not all(turns(3, 1)), "a mask of as many rows as heads is taken for one of heads"


def sees_another(patch: pytest.MonkeyPatch) -> None:
    original = ArrayKVCache.update_and_fetch

    def update_and_fetch(self: ArrayKVCache, keys: mx.array, values: mx.array) -> Any:
        seen, _ = found = original(self, keys, values)
        if isinstance(seen, Pieces) and len(seen) > 1:
            mixed = Pieces([*seen[1:], seen[0]])
            mixed = Pieces(new._replace(queries=old.queries) for new, old in zip(mixed, seen, strict=True))
            return mixed, mixed
        return found

    patch.setattr(ArrayKVCache, "update_and_fetch", update_and_fetch)


def one_position_back(patch: pytest.MonkeyPatch) -> None:
    original = Pass.__init__

    def init(self: Pass, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        if len(self.pieces) > 1:
            self.offset = mx.array(self.offset) - 1

    patch.setattr(Pass, "__init__", init)


def states_of_other_rows(patch: pytest.MonkeyPatch) -> None:
    original = StatesCache.__init__

    def init(self: StatesCache, arrays: Any, offset: Any) -> None:
        original(self, [a if a is None or a.shape[0] < 2 else a[::-1] for a in arrays], offset)

    patch.setattr(StatesCache, "__init__", init)


ROW_FAULTS = [
    *(
        (write, fault)
        for write in (write_llama, write_gemma3, write_deepseek2)
        for fault in (sees_another, one_position_back)
    ),
    (write_qwen3_next, states_of_other_rows),
    (write_mamba2, states_of_other_rows),
]


@pytest.mark.slow
@pytest.mark.parametrize(("write", "fault"), ROW_FAULTS)
def test_injected_faults_of_sequences_together_are_found(
    write: Writer,
    fault: Callable[[pytest.MonkeyPatch], None],
    models: Callable[[Writer], LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = models(write)
    assert not rows_problem(model.engine.model, model.geometry, NO_KERNELS)
    fault(monkeypatch)
    assert "differ" in rows_problem(model.engine.model, model.geometry, NO_KERNELS)


def sees_later_ones(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(passes, "banded", lambda n, total, window: mx.ones((n, total), dtype=mx.bool_))
    original = passes.over_pieces

    def over(attend: Any, *more: Any) -> Any:
        def unmasked(*arguments: Any, mask: Any, **options: Any) -> Any:
            return attend(*arguments, mask=None, **options)

        return original(unmasked, *more)

    patch.setattr("inference_service.engine.attention.backend.over_pieces", over)


@pytest.mark.parametrize("write", [write_llama, write_gemma3])
def test_tokens_that_ride_and_see_later_ones_are_found(
    write: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(write(tmp_path))
    assert not riding_problem(model.engine.model, model.geometry, NO_KERNELS)
    sees_later_ones(monkeypatch)
    assert "differ" in riding_problem(model.engine.model, model.geometry, NO_KERNELS)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, write_qwen3_next])
def test_tokens_that_see_later_ones_are_found(write: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a model's answers would hang on how a prompt was cut."""
    model = loaded(write(tmp_path))
    assert not order_problem(model.engine.model, model.geometry)
    monkeypatch.setattr(SequenceKVCache, "make_mask", lambda self, n, *_, **__: None)
    assert "see later ones" in order_problem(model.engine.model, model.geometry)


def test_a_device_that_rounds_several_rows_otherwise_has_them_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As GPUs do that take TF32 for several rows."""
    model, original = loaded(write_llama(tmp_path)), nn.Linear.__call__

    def call(self: nn.Linear, x: mx.array) -> Any:
        several = x.size > x.shape[-1]
        return original(self, (x.view(mx.uint32) & 0xFFF00000).view(mx.float32) if several else x)

    monkeypatch.setattr(nn.Linear, "__call__", call)
    assert "differ" in rows_problem(model.engine.model, model.geometry, NO_KERNELS)


def by_the_matrix(shape: Shape, layers: Any, wanted: Sequence[Case]) -> Figures:
    """A measurement that finds it the fastest, or what is dequantized."""
    return {str(c): {way: 1.0 if way in (FLATTENED, DEQUANTIZED) else 2.0 for way in c.ways(shape)} for c in wanted}


def speeds_in(directory: Path) -> ProductSpeeds:
    return ProductSpeeds(directory / "products.json", by_the_matrix)


def ways_of(model: nn.Module) -> set[tuple[str, str]]:
    """The ways that its quantized layers take for a step of 8 rows, and for a chunk of 64."""
    found = [layer for layers in quantized_layers(model, mx.float32).values() for layer in layers]
    assert found
    chosen = [layer.products for layer in found if hasattr(layer, "products")]
    return {(each.step(8), each.chunk(64)) for each in chosen} or {(GIVEN, GIVEN)}


@pytest.fixture
def quantized_model(tmp_path: Path) -> LoadedModel:
    return loaded(write_quantized(tmp_path / "q", write_llama(tmp_path / "m"), bits=4, group_size=32))


def test_products_are_computed_as_given_on_metal(
    quantized_model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "on_metal", lambda: True)
    network = quantized_model.engine.model
    _, reports, _, _ = prove(quantized_model, network, speeds_in(tmp_path))
    assert not [report for report in reports if report.phase == "products"]
    assert ways_of(network.model) == {(GIVEN, GIVEN)}
    assert not (tmp_path / "products.json").exists()


@pytest.mark.skipif(on_cuda(), reason="this device is no CPU")
def test_chunks_are_dequantized_on_a_cpu_where_that_is_the_fastest(
    quantized_model: LoadedModel, tmp_path: Path
) -> None:
    network = quantized_model.engine.model
    _, reports, _, _ = prove(quantized_model, network, speeds_in(tmp_path))
    assert [report.path for report in reports if report.phase == "products"] == [DEQUANTIZED]
    assert ways_of(network.model) == {(GIVEN, DEQUANTIZED)}
