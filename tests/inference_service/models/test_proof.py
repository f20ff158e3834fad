"""What is proved of a model at load: rows that are wrong together are decoded one by one, and steps that are wrong when
they are compiled are not. And what is chosen: how products of rows are computed."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.utils import load_model

from benchmarks.contestants import Ours
from benchmarks.loading import load
from inference_service.engine import product_speeds
from inference_service.engine.caches import BatchQuantizedKVCache, QuantizedKVCache
from inference_service.engine.caches.buffers import BatchCache
from inference_service.engine.caches.states import BatchStateCache
from inference_service.engine.caches.traced import Positions, TracedKVCache
from inference_service.engine.cuda_kernel import available
from inference_service.engine.geometry import Geometry
from inference_service.engine.product_speeds import Case, Figures, ProductSpeeds
from inference_service.engine.products import DEQUANTIZED, FLATTENED, GIVEN, Shape, quantized_layers
from inference_service.models import proof
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.models.loading import ATTENTION
from inference_service.models.proof import (
    Speeds,
    ahead_problem,
    batch_problem,
    compiled_problem,
    compiled_steps,
    order_problem,
    prove,
)
from tests.inference_service.engine.batch_turns import begin, prompt_of, right, run
from tests.oracle import Oracle
from tests.tiny_hybrids import write_falcon_h1, write_granite4, write_qwen3_next
from tests.tiny_models import write_deepseek2, write_gemma3, write_gpt_oss, write_llama, write_quantized
from tests.tiny_own_attention import (
    write_deepseek3,
    write_deepseek32,
    write_gemma2,
    write_kimi_linear,
    write_llama4,
    write_stablelm,
)
from tests.tiny_states import write_mamba2

pytestmark = pytest.mark.sampled(3)

TOGETHER = [write_llama, write_gemma3, write_qwen3_next, write_deepseek3, write_kimi_linear, write_stablelm]
COMPILED = [*TOGETHER, write_gpt_oss, write_deepseek2, write_deepseek32, write_granite4, write_falcon_h1, write_mamba2]
COMPILED += [write_gemma2]  # in batches of one row


Writer = Callable[[Path], Path]


def loaded(directory: Path) -> LoadedModel:
    return load("tiny", str(directory), pool_bytes=1 << 24, hashes=ContentHashes(directory / "hashes.json"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Writer], LoadedModel]:
    """Loads each once."""
    return cache(lambda write: loaded(write(tmp_path_factory.mktemp("model"))))


@pytest.mark.skipif(available(), reason="a GPU is never too slow")
@pytest.mark.parametrize(("seconds", "together"), [(0.0, False), (1e9, True)])
def test_a_slow_cpu_is_asked_for_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, together: bool
) -> None:
    """Prompts one by one need no proof; rows of a batch are proved all the same."""
    monkeypatch.setattr(proof, "_SLOW_SECONDS", seconds)
    asked: list[object] = []
    monkeypatch.setattr(proof, "prompts_problem", lambda *of: asked.append(of) or "")
    network = load("m", str(write_llama(tmp_path / "m")), hashes=ContentHashes(tmp_path / "h.json")).engine.model
    assert (network.rows_together, network.prompts_together, bool(asked)) == (True, together, together)


@pytest.mark.slow("write_qwen3_next", "write_kimi_linear")
@pytest.mark.parametrize("write", TOGETHER)
def test_rows_of_most_models_are_decoded_together(write: Callable[[Path], Path], tmp_path: Path) -> None:
    assert loaded(write(tmp_path)).engine.model.rows_together


@pytest.mark.slow
def test_rows_that_are_wrong_together_are_decoded_one_by_one(tmp_path: Path) -> None:
    directory = write_gemma2(tmp_path / "model")
    model, oracle = loaded(directory), Oracle(directory)
    notes = [report.note for report in model.paths if report.phase == "decode"]
    assert notes and "rows one by one" in notes[0]

    def turns(*repeats: int) -> list[bool]:
        begun = [begin(model, prompt_of(model, number, each)) for number, each in enumerate(repeats)]
        run(model)
        return [right(oracle, turn) for turn in begun]

    assert turns(3, 1, 2) == [True, True, True]
    model.engine.model.rows_together = True
    assert not all(turns(3, 1)), "a mask of as many rows as heads is taken for one of heads"


def test_padding_that_is_seen_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the engine's own batches, too: their mask is as much of what is proved as the model's code."""
    model = loaded(write_llama(tmp_path))
    geometry: Geometry = model.geometry
    assert not batch_problem(model.engine.model, geometry)
    cache = type(type(geometry.new_caches()[0]).merge(geometry.new_caches()))
    monkeypatch.setattr(cache, "make_mask", lambda self, n, **_: None)
    assert "differ" in batch_problem(model.engine.model, geometry)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, write_qwen3_next])
def test_tokens_that_see_later_ones_are_found(
    write: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a model's answers would hang on how a prompt was cut."""
    model = loaded(write(tmp_path))
    assert not order_problem(model.engine.model, model.geometry)
    monkeypatch.setattr(QuantizedKVCache, "make_mask", lambda self, n, **_: None)
    assert "see later ones" in order_problem(model.engine.model, model.geometry)


@pytest.mark.slow("write_gemma3", "write_llama4", "write_gpt_oss")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("write", [*COMPILED, write_llama4])
def test_most_models_compute_several_tokens_of_a_row_at_once(
    write: Writer, models: Callable[[Writer], LoadedModel]
) -> None:
    model = models(write)
    assert not ahead_problem(model.engine.model, model.geometry)
    assert model.engine.model.ahead


def sees_drafts(patch: pytest.MonkeyPatch) -> None:
    """A token sees those that were guessed behind it."""
    original = BatchQuantizedKVCache.make_mask

    def mask(self: BatchQuantizedKVCache, n: int, *more: Any, **options: Any) -> Any:
        found = original(self, n, *more, **options)
        return found if n == 1 or found is None else mx.ones_like(found)

    patch.setattr(BatchQuantizedKVCache, "make_mask", mask)


def keeps_what_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchCache, "trim", lambda self, tokens: None)


@pytest.mark.parametrize("fault", [sees_drafts, keeps_what_is_dropped])
@pytest.mark.parametrize("write", [write_llama, write_deepseek2, write_stablelm])
def test_what_is_wrong_with_several_tokens_at_once_is_found(
    write: Writer, fault: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    model = loaded(write(tmp_path))
    assert "differ" in ahead_problem(model.engine.model, model.geometry)
    assert not model.engine.model.ahead


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("write", COMPILED)
def test_steps_of_most_models_can_be_compiled(write: Writer, models: Callable[[Writer], LoadedModel]) -> None:
    model = models(write)
    assert not compiled_problem(model.engine.model, model.geometry)
    assert model.engine.model.steps is None, "it is found out, and not switched on"


def blind_to_itself(patch: pytest.MonkeyPatch) -> None:
    original = Positions.mask
    patch.setattr(Positions, "mask", lambda self, n, window: original(self, n, window) & (mx.arange(n) != self.slot))


def sees_padding(patch: pytest.MonkeyPatch) -> None:
    def mask(self: Positions, capacity: int, window: int) -> mx.array:
        return mx.broadcast_to(mx.arange(capacity) <= self.slot, (self.first.shape[0], 1, 1, capacity))

    patch.setattr(Positions, "mask", mask)


def written_too_early(patch: pytest.MonkeyPatch) -> None:
    original = TracedKVCache.update_and_fetch

    def update_and_fetch(self: TracedKVCache, keys: mx.array, values: mx.array) -> Any:
        self.slot = self.slot - 1
        return original(self, keys, values)

    patch.setattr(TracedKVCache, "update_and_fetch", update_and_fetch)


def lost_once_a_buffer_has_grown(patch: pytest.MonkeyPatch) -> None:
    """As of a number that was baked into a trace: right at first."""
    original = Positions.mask

    def mask(self: Positions, capacity: int, window: int) -> mx.array:
        seen = original(self, capacity, window)
        return seen if capacity == 256 else seen & (mx.arange(capacity) >= 250)

    patch.setattr(Positions, "mask", mask)


def one_position_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TracedKVCache, "offset", property(lambda self: self.positions.offset - 1))


def states_of_other_rows(patch: pytest.MonkeyPatch) -> None:
    original = BatchStateCache.written
    patch.setattr(BatchStateCache, "written", lambda self, arrays: original(self, [array[::-1] for array in arrays]))


IN_KV = [blind_to_itself, sees_padding, written_too_early, lost_once_a_buffer_has_grown, one_position_back]
FAULTS = [
    *((write, fault) for write in (write_llama, write_gemma3, write_deepseek2, write_stablelm) for fault in IN_KV),
    *((write, states_of_other_rows) for write in (write_qwen3_next, write_mamba2)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("write", "fault"), FAULTS)
def test_injected_faults_of_compiled_steps_are_found(
    write: Writer,
    fault: Callable[[pytest.MonkeyPatch], None],
    models: Callable[[Writer], LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = models(write)
    fault(monkeypatch)
    assert "differ" in compiled_problem(model.engine.model, model.geometry)
    monkeypatch.setattr(proof, "available", lambda: True)
    assert compiled_steps("tiny", model.engine.model, model.geometry, ()) is None


@pytest.mark.slow
def test_steps_are_compiled_where_the_gpu_is_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_llama(tmp_path / "llama")
    monkeypatch.setattr(proof, "available", lambda: False)
    assert loaded(tmp_path / "llama").engine.model.steps is None
    monkeypatch.setattr(proof, "available", lambda: True)
    steps = loaded(tmp_path / "llama").engine.model.steps
    assert steps is not None
    assert not steps.compiled, "what was traced to prove it is gone"
    untraceable = loaded(write_llama4(tmp_path / "llama4"))
    assert untraceable.engine.model.steps is None
    assert compiled_problem(untraceable.engine.model, untraceable.geometry) == "they cannot be traced"


def by_the_matrix(shape: Shape, layers: Any, wanted: Sequence[Case]) -> Figures:
    """A measurement that finds it the fastest, or what is dequantized."""
    return {str(c): {way: 1.0 if way in (FLATTENED, DEQUANTIZED) else 2.0 for way in c.ways(shape)} for c in wanted}


def speeds_in(directory: Path) -> Speeds:
    return Speeds.kept_in(directory)._replace(products=ProductSpeeds(directory / "products.json", by_the_matrix))


def ways_of(model: nn.Module) -> set[tuple[str, str]]:
    """The ways that its quantized layers take for a step of 8 rows, and for a chunk of 64."""
    found = [layer for layers in quantized_layers(model, mx.float32).values() for layer in layers]
    assert found
    chosen = [layer.products for layer in found if hasattr(layer, "products")]
    return {(each.step(8), each.chunk(64)) for each in chosen} or {(GIVEN, GIVEN)}


@pytest.fixture
def quantized_model(tmp_path: Path) -> LoadedModel:
    return loaded(write_quantized(tmp_path / "q", write_llama(tmp_path / "m"), bits=4, group_size=32))


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "available", lambda: True)
    for module in (proof, product_speeds):
        monkeypatch.setattr(module, "on_cpu", lambda: False)


def test_products_are_computed_as_given_on_metal(
    quantized_model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "available", lambda: False)
    monkeypatch.setattr(proof, "on_cpu", lambda: False)
    network = quantized_model.engine.model
    _, reports = prove(quantized_model, network, ATTENTION, speeds_in(tmp_path))
    assert not [report for report in reports if report.phase == "products"]
    assert ways_of(network.model) == {(GIVEN, GIVEN)}
    assert not (tmp_path / "products.json").exists()


@pytest.mark.skipif(available(), reason="this device is no CPU")
def test_chunks_are_dequantized_on_a_cpu_where_that_is_the_fastest(
    quantized_model: LoadedModel, tmp_path: Path
) -> None:
    network = quantized_model.engine.model
    _, reports = prove(quantized_model, network, ATTENTION, speeds_in(tmp_path))
    assert [report.path for report in reports if report.phase == "products"] == [DEQUANTIZED]
    assert ways_of(network.model) == {(GIVEN, DEQUANTIZED)}


@pytest.mark.slow
@pytest.mark.usefixtures("on_cuda")
def test_products_are_computed_by_the_fastest_way_where_there_is_a_choice(
    quantized_model: LoadedModel, tmp_path: Path
) -> None:
    network = quantized_model.engine.model
    for _ in range(2):
        _, reports = prove(quantized_model, network, ATTENTION, speeds_in(tmp_path))
        assert [report.path for report in reports if report.phase == "products"] == [FLATTENED, DEQUANTIZED]
        assert ways_of(network.model) == {(FLATTENED, DEQUANTIZED)}
        assert network.rows_together
        assert network.steps is not None
    prove(quantized_model, network, ATTENTION, None)
    assert ways_of(network.model) == {(FLATTENED, DEQUANTIZED)}, "what was chosen stays where nothing is measured"


@pytest.mark.slow
@pytest.mark.usefixtures("on_cuda")
def test_the_engine_in_benchmarks_chooses_for_itself_alone(tmp_path: Path) -> None:
    """mlx-lm's model, over the same weights, is what it is compared with."""
    directory = write_quantized(tmp_path / "q", write_llama(tmp_path / "m"), bits=4, group_size=32)
    plain, _ = load_model(directory)
    plain.set_dtype(mx.float32)
    ours = Ours(plain, speeds_in(tmp_path))
    assert [report.path for report in ours.paths if report.phase == "products"] == [FLATTENED, DEQUANTIZED]
    assert ways_of(ours.engine.model.model) == {(FLATTENED, DEQUANTIZED)}
    assert ways_of(plain) == {(GIVEN, GIVEN)}
    assert type(plain.layers[0].mlp.up_proj) is nn.QuantizedLinear
