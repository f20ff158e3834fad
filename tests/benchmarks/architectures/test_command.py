"""The whole benchmark on the demo model, and that it fails where quantized KV is spoiled."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from benchmarks.architectures import models
from benchmarks.architectures.command import COUNTS, main, parser
from benchmarks.architectures.engine import LogProbs
from benchmarks.architectures.report import tables
from benchmarks.architectures.scores import DECODE, PREFILL, ratio, recall
from benchmarks.architectures.texts import Text, make_texts
from benchmarks.models import DEMO
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.engine.paged.store import KVStore
from inference_service.engine.quantization import BALANCED
from inference_service.models.loaded import LoadedModel

LENGTH, DECODED = 320, 64


@dataclass
class Run:
    """The command's figures, and the log-probabilities behind them: unquantized, and with 4 bits."""

    figures: dict[str, Any]
    plain: list[LogProbs]
    given: list[LogProbs]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("results") / "quality"
    arguments = ["--dialogues", f"{LENGTH}:2", "--decoded", str(DECODED), "--output", str(path)]
    plain, by_bits = Recorded(models.unquantized), Recorded(models.quantized)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as shown:
        patch.setattr(models, "unquantized", plain)
        patch.setattr(models, "quantized", by_bits)
        status = main(parser().parse_args(arguments))
    assert status == 0
    assert "Recall with quantized KV by architecture" in shown.getvalue()
    assert (len(plain.found), len(by_bits.found)) == (1, 2)
    return Run(json.loads(path.with_suffix(".json").read_text())["figures"], plain.found[0], by_bits.found[0])


class Recorded:
    """A function whose answers are kept: to compute them again takes seconds."""

    def __init__(self, function: Callable[..., list[LogProbs]]) -> None:
        self._function = function
        self.found: list[list[LogProbs]] = []

    def __call__(self, *arguments: Any) -> list[LogProbs]:
        self.found.append(self._function(*arguments))
        return self.found[-1]


@pytest.fixture(scope="module")
def figures(run: Run) -> dict[str, Any]:
    return run.figures


def test_the_demo_model(figures: dict[str, Any]) -> None:
    [model] = figures["models"].values()
    assert (model["architecture"], model["dtype"], model["scheme"]) == ("llama", "float32", BALANCED)
    for bits in ("4", "8"):
        of = model["by_bits"][bits]
        assert of["ratio"]["high"] < 1.001
        assert (of["recall"]["asked"], of["recall"]["lost"]) == (len([*_answers(of)]), 0)
        assert of["recall"]["asked"] > 5
        assert [of["by_phase"][phase]["recall"]["asked"] > 0 for phase in (PREFILL, DECODE)] == [True, True]
    four, eight = (model["by_bits"][bits]["all_tokens"]["divergence"] for bits in ("4", "8"))
    assert 0 < 10 * eight < four, "more bits are closer, so they are really used"


def _answers(of: dict[str, Any]) -> Iterator[Any]:
    for sample in of["samples"]:
        yield from sample["answers"]


def test_what_is_shown(figures: dict[str, Any]) -> None:
    assert [len(table.rows) for table in tables(figures)] == [2]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    model = models.loaded(DEMO, tmp_path_factory.mktemp("work"), 4)
    yield model
    model.release()


@pytest.fixture(scope="module")
def texts(demo: LoadedModel) -> list[Text]:
    return make_texts(DEMO, {LENGTH: 2}, DECODED)


@pytest.fixture(scope="module")
def plain(run: Run) -> list[LogProbs]:
    return run.plain


@pytest.fixture(scope="module")
def given(run: Run) -> list[LogProbs]:
    return run.given


def test_the_two_ways_agree_where_little_is_lost(
    demo: LoadedModel, texts: list[Text], plain: list[LogProbs], given: list[LogProbs]
) -> None:
    """Over all tokens the log-probabilities differ a little; those of one prefill over the same caches do not."""
    network: Any = demo.engine
    logits = network.model(mx.array([texts[0].token_ids[:-1]]), cache=demo.geometry.new_caches(demo.codecs))[0]
    assert np.abs(given[0] - np.array(nn.log_softmax(logits, axis=-1))).max() < 1e-3
    for text, found, expected in zip(texts, given, plain, strict=True):
        assert found.shape == expected.shape == (len(text.token_ids) - 1, demo.vocab_size)
        assert 0.01 < np.median(np.abs(found - expected)) < 0.5


@pytest.mark.slow
def test_another_agent_s_blocks_are_found_in_decode(
    demo: LoadedModel, texts: list[Text], plain: list[LogProbs], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = KVStore.started
    taken: list[list[int]] = []

    def first_of_all(self: KVStore, start: Start) -> KVSequence:
        taken.append(list(start.blocks))
        return started(self, replace(start, blocks=taken[0]))

    monkeypatch.setattr(KVStore, "started", first_of_all)
    _, sample = models.compare(demo, texts, plain)
    assert ratio([sample], (DECODE,)).value > 1.1
    assert recall([sample], (DECODE,)).lost > 0
    assert ratio([sample], (PREFILL,)).high < 1.001


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["--dialogues", "100:2"], "at least 256"),
        (["--dialogues", "many"], "LENGTH:COUNT"),
        (["--dialogues", "512:1", "512:0"], "at least 1"),
        (["--models", str(tmp_path)], "train one as --help says"),
        (["--decoded", "63"], "64 or more"),
    ):
        with pytest.raises(SystemExit) as ended:
            parser().parse_args(arguments)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
    assert parser().parse_args(["--dialogues", "512:3", "1024:1"]).dialogues == [(512, 3), (1024, 1)]
    assert dict(parser().parse_args([]).dialogues) == COUNTS
