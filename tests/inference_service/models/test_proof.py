"""What is proved of a model at load: rows that are wrong together are decoded one by one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.loading import load
from inference_service.engine.caches import QuantizedKVCache
from inference_service.engine.geometry import Geometry
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.models.proof import batch_problem, order_problem
from tests.inference_service.engine.batch_turns import begin, prompt_of, right, run
from tests.oracle import Oracle
from tests.tiny_hybrids import write_qwen3_next
from tests.tiny_models import write_gemma3, write_llama
from tests.tiny_own_attention import write_deepseek3, write_gemma2, write_kimi_linear, write_stablelm

TOGETHER = [write_llama, write_gemma3, write_qwen3_next, write_deepseek3, write_kimi_linear, write_stablelm]


def loaded(directory: Path) -> LoadedModel:
    return load("tiny", str(directory), hashes=ContentHashes(directory / "hashes.json"))


@pytest.mark.parametrize("write", TOGETHER)
def test_rows_of_most_models_are_decoded_together(write: Callable[[Path], Path], tmp_path: Path) -> None:
    assert loaded(write(tmp_path)).engine.model.rows_together


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


@pytest.mark.parametrize("write", [write_llama, write_qwen3_next])
def test_tokens_that_see_later_ones_are_found(
    write: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a model's answers would hang on how a prompt was cut."""
    model = loaded(write(tmp_path))
    assert not order_problem(model.engine.model, model.geometry)
    monkeypatch.setattr(QuantizedKVCache, "make_mask", lambda self, n, **_: None)
    assert "see later ones" in order_problem(model.engine.model, model.geometry)
