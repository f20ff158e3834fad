"""Turns that come at once: short prompts wait a moment for turns that are planned, and drafts for none of them."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from inference_service.engine import gathering
from inference_service.engine.paged.passes import Pass
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import begin, prompt_of, right, run, until_told
from tests.inference_service.engine.foresight import TOKENS, Foresight, foresee
from tests.inference_service.engine.riders import some_prompts
from tests.oracle import Oracle
from tests.tiny_models import write_llama

_LONG = 10**9


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_SECONDS", _LONG)


@pytest.fixture
def computed(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Of each pass, the tokens of its pieces."""
    found: list[list[int]] = []
    compute = model.arenas.compute

    def noted(network: Any, of: Pass, tokens: mx.array) -> Any:
        found.append([piece.tokens for piece in of.pieces])
        return compute(network, of, tokens)

    monkeypatch.setattr(model.arenas, "compute", noted)
    return found


def test_prompts_wait_for_turns_that_are_planned(model: LoadedModel, oracle: Oracle, computed: list[list[int]]) -> None:
    early, late = some_prompts(model, 12, 9)
    with model.engine.gathering.expecting():
        turns = [begin(model, early)]
        assert all(model.engine.step() for _ in range(3)) and not computed
        assert model.engine.prompts == 2, "the one that is planned, too"
        turns.append(begin(model, late))
    model.engine.step()
    assert computed == [[9, 12]]
    run(model)
    assert all(right(oracle, turn) and turn.whole for turn in turns) and model.engine.prompts == 0


def test_they_do_not_wait_for_long(
    model: LoadedModel, computed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large input is planned for seconds."""
    monkeypatch.setattr(gathering, "_SECONDS", 0.02)
    with model.engine.gathering.expecting():
        begin(model, some_prompts(model, 12)[0])
        assert model.engine.step() and not computed
        run(model)
        assert computed[0] == [12]


def test_nobody_waits_while_a_turn_generates(model: LoadedModel, computed: list[list[int]]) -> None:
    """Its tokens would wait, too."""
    speaks = begin(model, prompt_of(model, 4, 3), 30)
    until_told(model, [speaks], 3)
    computed.clear()
    with model.engine.gathering.expecting():
        begin(model, some_prompts(model, 12)[0])
        model.engine.step()
        assert computed == [[1, 12]]
    run(model)


def test_nor_do_chunks_of_a_long_prompt(model: LoadedModel) -> None:
    with model.engine.gathering.expecting():
        long = begin(model, prompt_of(model, 90, 30)[:700])
        model.engine.step()
        assert long.job.chunks
    run(model)


def test_a_turn_that_is_planned_does_not_wait_for_a_drafted_step(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    foresee(monkeypatch)
    plain = begin(model, prompt_of(model, 4, 3), TOKENS)
    run(model)
    drafted: list[int] = []
    monkeypatch.setattr(model.engine, "speculative", True)
    monkeypatch.setattr(model.engine, "speculated", lambda tokens, _right: drafted.append(tokens))
    Foresight.turns = (plain,)
    turn = begin(model, prompt_of(model, 4, 3), TOKENS)
    until_told(model, [turn], 2)
    drafted.clear()
    with model.engine.gathering.expecting():
        for _ in range(4):
            model.engine.step()
        assert not drafted
    run(model)
    assert drafted and turn.said == plain.said
