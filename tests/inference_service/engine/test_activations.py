"""The cost of computing: the estimate against the peaks of models, and the parts that it must not miss."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_service.engine import activations
from inference_service.engine.activations import Activations, chunk_peak, with_measured_states
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.computing import LEAST_CHUNK, EstimatedCost
from inference_service.engine.geometry import Geometry
from inference_service.engine.scheduling import chunk_tokens, latest_chunks
from inference_service.models.loaded import read_weights
from inference_service.models.opening import ModelSpec, open_network, open_text
from tests import tiny_hybrids, tiny_models, tiny_own_attention, tiny_states

WRITERS: dict[str, Callable[[Path], Path]] = {
    "llama": tiny_models.write_llama,
    "gemma3": lambda directory: tiny_models.write_gemma3(directory, window=512),
    "gpt_oss": tiny_models.write_gpt_oss,
    "deepseek2": tiny_models.write_deepseek2,
    "gemma2": tiny_own_attention.write_gemma2,
    "stablelm": tiny_own_attention.write_stablelm,
    "qwen3_next": tiny_hybrids.write_qwen3_next,
    "jamba": tiny_hybrids.write_jamba,
    "mamba2": tiny_states.write_mamba2,
    "rwkv7": tiny_states.write_rwkv7,
}
LOOSEST = 12.0
MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("by_openblas")


@dataclass(frozen=True)
class Loaded:
    network: Any
    geometry: Geometry
    cost: EstimatedCost


def load(directory: Path) -> Loaded:
    spec = ModelSpec("m", directory)
    info, network = open_network(spec, open_text(spec), AttentionBackend())
    for _ in read_weights(info, network):
        pass
    assert isinstance(info.cost, EstimatedCost)
    return Loaded(network, info.geometry, info.cost)


@pytest.mark.slow(*(set(WRITERS) - {"llama", "mamba2"}))
@pytest.mark.parametrize("name", WRITERS)
def test_no_chunk_takes_more_than_estimated(name: str, tmp_path: Path) -> None:
    model = load(WRITERS[name](tmp_path / "m"))
    cost = with_measured_states(model.cost, model.network, model.geometry)
    for tokens, position in ((2048, 0), (LEAST_CHUNK, 2048)):
        worst = chunk_peak(model.network, model.geometry, tokens, position)
        assert worst <= cost.of(tokens, position) <= LOOSEST * worst + MIB, (name, tokens)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["pair_bytes", "token_bytes"])
def test_a_part_that_nobody_counts_is_missed(missing: str, tmp_path: Path) -> None:
    write = tiny_models.write_llama if missing == "pair_bytes" else tiny_states.write_mamba2
    model = load(write(tmp_path / "m"))
    less = replace(model.cost, **{missing: 0})
    assert less.of(1024, 0) < chunk_peak(model.network, model.geometry, 1024)


def test_measured_once_and_for_its_context(tmp_path: Path) -> None:
    calls: list[int] = []

    def counted(_network: Any, _geometry: Geometry, context: int) -> int:
        calls.append(context)
        return 1000 * context

    memory, model = tmp_path / "activations.json", (cast(Any, None), cast(Any, None))
    here = Activations(memory, counted)
    assert here.remembered("f", 4096) is None
    assert here.of("f", *model, 4096) == 4_096_000
    later = Activations(memory, counted)
    assert later.of("f", *model, 4096) == later.remembered("f", 4096) == 4_096_000
    assert later.remembered("g", 4096) is later.remembered("f", 512) is None
    assert calls == [4096]
    memory.write_text(memory.read_text().replace("4096000", "null"))
    assert later.remembered("f", 4096) is None
    assert later.of("f", *model, 4096) == 4_096_000


@pytest.mark.slow
def test_the_worst_chunks_are_computed_where_that_is_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(tiny_models.write_llama(tmp_path))
    monkeypatch.setattr(activations, "_KEYS_ON_GPU", 1024)

    def predicted(context: int) -> int:
        return activations.measured(model.network, model.geometry, context)

    worst = chunk_peak(model.network, model.geometry, 1024)
    assert worst <= predicted(1024) <= 1.5 * worst
    far = chunk_peak(model.network, model.geometry, 512, 8192 - 512)
    assert predicted(8192) >= 0.6 * far > predicted(1024), "a CPU's peaks differ by what is freed late"


@given(st.integers(1, 200_000), st.data())
def test_the_latest_chunks_are_above_all_that_are_computed(context: int, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, context - 1))
    speed = data.draw(st.floats(0, 1e6))
    tokens = min(chunk_tokens(position, speed, 1.0), context - position)
    assert any(tokens <= most and position + tokens <= keys for most, keys in latest_chunks(context))
