"""No product is so large that macOS would end it: before speeds are known, and in passes after that."""

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from inference_service.engine import batching, prefill, prompts
from inference_service.engine.scheduling import LayerWork, chunk_tokens, distance
from inference_service.models import loading, proof
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import begin, prompt_of, run
from tests.inference_service.engine.evaluations import Evaluations
from tests.inference_service.engine.riders import some_prompts
from tests.inference_service.models.world import serving
from tests.tiny_models import write_llama

MOST = 1e12
"""Operations of a product: a second on the slowest Mac, with 40 % of its 2.6 TFLOP/s. MLX ends a command buffer after
50 operations or 50 MB of inputs, which are less than one such product.
"""
LLAMA_8B = LayerWork(218_000_000, 32 * 256)
SHORT = 60


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> Iterator[Evaluations]:
    found = Evaluations()
    found.patch(monkeypatch)
    yield found
    mx.enable_compile()


@pytest.fixture
def on_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (batching, prefill, prompts, loading):
        monkeypatch.setattr(module, "on_cpu", lambda: False)
    for module in (prompts, proof):
        monkeypatch.setattr(module, "on_metal", lambda: True)


def test_a_large_product_is_seen(evaluations: Evaluations) -> None:
    weight = mx.eye(8)
    mx.eval(weight)
    mx.eval(mx.ones((16_384, 8)) @ weight)
    assert evaluations.rows == [16_384] and evaluations.operations > MOST
    mx.async_eval(mx.ones((1, 2, 512, 8)) @ mx.ones((1, 2, 8, 1024)))  # type: ignore[no-untyped-call]
    assert evaluations.pairs == [512 * 1024]


@pytest.mark.slow
@pytest.mark.usefixtures("on_metal")
@pytest.mark.parametrize("measure_first_bytes", [0, 1 << 30])
async def test_a_load_measures_and_proves_in_bounds(
    measure_first_bytes: int, tmp_path: Path, evaluations: Evaluations
) -> None:
    settings = {"measure_first_bytes": measure_first_bytes, "quality_check": True}
    async with serving({"a": str(write_llama(tmp_path / "a"))}, tmp_path / "data", settings=settings) as world:
        await world.once("a")
    assert len(evaluations.rows) > 20
    assert evaluations.operations <= MOST


@pytest.mark.usefixtures("on_metal")
def test_first_prompts_and_far_ones_are_computed_in_bounds(
    model: LoadedModel, evaluations: Evaluations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.engine, "work", LLAMA_8B)
    monkeypatch.setattr(model.engine, "_tokens_per_second", 0.0)
    monkeypatch.setattr(model.engine, "_measured", set())
    turns = [begin(model, prompt, 2) for prompt in some_prompts(model, *[SHORT] * 6)]
    model.engine.step()
    assert max(evaluations.rows) <= 64, "no speed is known"
    long = begin(model, prompt_of(model, 0, 60), 2)
    run(model)
    assert all(turn.whole for turn in (*turns, long))
    assert 64 <= long.job.chunks[0].tokens <= 512 and evaluations.operations <= MOST
    assert model.engine._measured == {0}


@pytest.mark.usefixtures("on_metal")
def test_a_small_first_chunk_measures_its_distance(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is so large that it has 64 tokens, and the others more."""
    monkeypatch.setattr(model.engine, "work", LayerWork(3_200_000_000, 8192))
    for speed in (0.0, 1e6):
        monkeypatch.setattr(model.engine, "_tokens_per_second", speed)
        monkeypatch.setattr(model.engine, "_measured", set())
        turn = begin(model, prompt_of(model, 3, 20), 2)
        run(model)
        first, *others = (chunk.tokens for chunk in turn.job.chunks)
        assert first == 64 and max(others) > 64


@pytest.mark.usefixtures("on_metal")
@pytest.mark.parametrize(("speed", "rows"), [(400.0, 180), (100.0, 60), (1e6, 360)])
def test_short_prompts_ride_for_half_a_second(
    speed: float, rows: int, model: LoadedModel, computed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.engine, "_tokens_per_second", speed)
    turns = [begin(model, prompt, 2) for prompt in some_prompts(model, *[SHORT] * 6)]
    model.engine.step()
    assert sum(computed[0]) == rows
    run(model)
    assert all(turn.whole for turn in turns)


@pytest.mark.parametrize("position", [0, 5_000, 30_000, 131_072 - 512])
@pytest.mark.parametrize("work", [LLAMA_8B, LayerWork(856_000_000, 64 * 256), LayerWork(), LayerWork(10**12, 1)])
def test_an_unmeasured_chunk_has_layers_of_half_a_second(work: LayerWork, position: int) -> None:
    tokens = work.unmeasured_tokens(position)
    assert tokens >= 64 and tokens % 64 == 0
    keys = position + min(tokens, chunk_tokens(position, 0.0))
    assert tokens == 64 or 2 * tokens * (work.weights + work.attention * min(keys, position + 512)) <= MOST / 2


def test_a_speed_holds_where_it_was_measured() -> None:
    assert distance(0) == distance(8191) < distance(8192) == distance(16_383) < distance(131_071)
    assert len({distance(at) for at in range(0, 131_072, 256)}) == 5
