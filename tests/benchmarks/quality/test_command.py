"""The benchmark on a slice of the real language model's texts, and what it says where that cannot be had.

With AGENTMEM_FULL_MATRIX=1 it reads three times as much, and asks for the facts of a chat: most of its time. How they
are asked for is tested with the demo model, in test_measuring.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from benchmarks import results
from benchmarks.quality.command import checked, measured, parser
from benchmarks.quality.texts import KINDS
from benchmarks.quality.variants import PLAIN_4
from gateway.cli.up.openblas import preload_here
from inference_service.engine import quality
from inference_service.engine.paged.alone import new_caches
from inference_service.models.loaded import LoadedModel
from tests.benchmarks.quality import real_model
from tests.full_matrix import FULL

LENGTH = 192 if FULL else 64

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By the command itself, which preloads OpenBLAS; with one thread, as the other cores have tests of their own."""
    if results.backend() == "cpu" and not preload_here().environment:
        pytest.skip("OpenBLAS is not installed")
    real_model.text()
    path = tmp_path_factory.mktemp("results") / "quality"
    sizes = ["--pieces", "1", "--length", str(LENGTH), "--chats", "1" if FULL else "0", "--chat-tokens", "900"]
    command = [sys.executable, "-m", "benchmarks", "quality", *sizes, "--variants", "8", PLAIN_4, "4"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command += ["--output", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode in (0, 1), ended.stderr
    assert "Perplexity and divergence of a real language model" in ended.stdout
    found: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())["figures"]
    return found


@pytest.mark.slow
def test_every_kind_was_read(figures: dict[str, Any]) -> None:
    assert figures["tokens"] == {kind.name: LENGTH - 1 for kind in KINDS}
    assert 5 < figures["perplexity"]["all"] < 60
    assert list(figures["variants"]) == [PLAIN_4, "4", "8"]
    assert figures["auto"]["bits"] in quality.LADDER[:3]


@pytest.mark.slow
def test_a_real_model_feels_what_the_demo_model_does_not(figures: dict[str, Any]) -> None:
    plain, four, eight = figures["variants"].values()
    assert plain["divergence"]["value"] > 2 * four["divergence"]["value"] > 20 * eight["divergence"]["value"] > 0
    assert plain["ratio"]["value"] > 1.05
    assert eight["ratio"]["value"] == pytest.approx(1.0, abs=0.01)
    assert plain["check"] > 2 * four["check"] > 20 * eight["check"]


@pytest.mark.skipif(not FULL, reason="takes a minute; AGENTMEM_FULL_MATRIX=1 runs it")
def test_facts_were_asked_for(figures: dict[str, Any]) -> None:
    assert figures["recall"]["asked"] == 12
    assert figures["recall"]["right"] >= 4
    assert figures["variants"]["8"]["recall"]["right"] >= figures["recall"]["right"] - 1


def test_what_cannot_run_here_is_left_out_and_said(demo: LoadedModel) -> None:
    def broken() -> list[Any]:
        raise NotImplementedError("no kernel for 2 bits\nsecond line")

    token_ids = demo.tokenizer.encode("The boat is green . ", parse_special=False) * 8
    divergences, stored, missing = checked(
        demo, token_ids, {"4": partial(new_caches, demo.geometry, demo.codecs), "2": broken}
    )
    assert divergences["4"] > 0
    assert stored["4"].here == demo.geometry.bytes_per_token > stored["4"].half
    assert (list(divergences), list(stored), missing) == (["4"], ["4"], {"2": "no kernel for 2 bits"})


def test_bits_of_windows_are_refused_without_windows(demo: LoadedModel) -> None:
    arguments = parser().parse_args(["--variants", "4", "5/4w6", "4w6"])
    with pytest.raises(SystemExit, match=r"--variants 5/4w6 4w6: bits of windows are for models with both"):
        next(measured(demo, arguments))
