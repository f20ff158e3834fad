"""What computing takes: the prediction against the peaks of real models at full size, and what it must not miss."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_service.engine import activations
from inference_service.engine.activations import MARGIN_OF_SMALL, Activations, chunk_peak, measured, small_chunks
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.geometry import Geometry
from inference_service.engine.scheduling import LARGEST_CHUNK, chunk_tokens, latest_chunks
from inference_service.models.loaded import read_weights
from inference_service.models.opening import ModelSpec, open_network, open_text
from tests import tiny_models

WRITERS: dict[str, Callable[[Path], Path]] = {
    "gemma3": lambda directory: tiny_models.write_gemma3(directory, window=512),
    "gpt_oss": tiny_models.write_gpt_oss,
    "deepseek2": tiny_models.write_deepseek2,
}
LOOSEST = 5.0
pytestmark = pytest.mark.usefixtures("by_openblas")


@dataclass(frozen=True)
class Loaded:
    network: Any
    geometry: Geometry
    context: int = LARGEST_CHUNK

    def worst(self) -> int:
        """The peak of a full chunk, which sees all keys of the context. (A longer context costs CI a minute.)"""
        return chunk_peak(self.network, self.geometry, LARGEST_CHUNK)

    def predicted(self) -> int:
        return measured(self.network, self.geometry, self.context)


def load(directory: Path) -> Loaded:
    spec = ModelSpec("m", directory)
    info, network = open_network(spec, open_text(spec), AttentionBackend())
    for _ in read_weights(info, network):
        pass
    return Loaded(network, info.geometry)


@pytest.mark.slow("gemma3", "gpt_oss")
@pytest.mark.parametrize("name", WRITERS)
def test_no_chunk_takes_more_than_predicted(name: str, tmp_path: Path) -> None:
    model = load(WRITERS[name](tmp_path))
    worst, predicted = model.worst(), model.predicted()
    assert worst <= predicted <= LOOSEST * worst


@pytest.mark.slow
def test_scores_that_nobody_counts_are_missed(tmp_path: Path) -> None:
    """A chunk extrapolated by the token alone leaves out the scores of a long context."""
    model = load(tiny_models.write_llama(tmp_path))
    worst, peaks = model.worst(), small_chunks(model.network, model.geometry, model.context)
    without = replace(peaks, pair_bytes=0.0)
    assert MARGIN_OF_SMALL * without.at_worst(model.geometry, model.context) < worst
    assert worst <= MARGIN_OF_SMALL * peaks.at_worst(model.geometry, model.context) <= LOOSEST * worst


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
    """As on a GPU: the prediction is what the chunks take, and for a longer context what further keys take besides."""
    model = load(tiny_models.write_llama(tmp_path))
    monkeypatch.setattr(activations, "_KEYS_ON_GPU", 1024)

    def predicted(context: int) -> int:
        return activations._by_worst_chunks(model.network, model.geometry, context)

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
