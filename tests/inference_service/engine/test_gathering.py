"""Turns that come at once: short prompts wait a moment for turns that are planned, and nothing is drafted."""

from types import SimpleNamespace

import pytest

from inference_service.engine import gathering, scheduling
from inference_service.engine.gathering import Gathering
from inference_service.models.loaded import LoadedModel
from tests.inference_service.directories import written_by
from tests.inference_service.engine.batch_turns import begin, prompt_of, right, run, until_told
from tests.inference_service.engine.foresight import TOKENS, Foresight, foresee
from tests.inference_service.engine.riders import some_prompts
from tests.oracle import Oracle
from tests.tiny_models import write_llama

_LONG = 10**9


directory = written_by([write_llama])


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_SECONDS", _LONG)


def test_prompts_wait_for_turns_that_are_planned(model: LoadedModel, oracle: Oracle, computed: list[list[int]]) -> None:
    early, late = some_prompts(model, 12, 9)
    with model.engine.gathering.expecting("late"):
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
    monkeypatch.setattr(gathering, "_SECONDS", 0.02)
    with model.engine.gathering.expecting("late"):
        begin(model, some_prompts(model, 12)[0])
        assert model.engine.step() and not computed
        run(model)
        assert computed[0] == [12]


def test_nobody_waits_while_a_turn_generates(model: LoadedModel, computed: list[list[int]]) -> None:
    speaks = begin(model, prompt_of(model, 4, 3), 30)
    until_told(model, [speaks], 3)
    computed.clear()
    with model.engine.gathering.expecting("late"):
        begin(model, some_prompts(model, 12)[0])
        model.engine.step()
        assert computed == [[1, 12]]
    run(model)


@pytest.mark.parametrize("company", ["none", "a short prompt", "one whose last token is left"])
def test_nor_while_a_long_prompt_is_computed(model: LoadedModel, monkeypatch: pytest.MonkeyPatch, company: str) -> None:
    monkeypatch.setattr(scheduling, "SECONDS_ALONE", 1e-6)  # Chunks are of the fewest tokens.
    others = []
    if company == "one whose last token is left":
        others = [begin(model, prompt_of(model, 80, 30)[:300])]
        while others[0].job.remaining > 1:
            model.engine.step()
    long = begin(model, prompt_of(model, 90, 60)[:1500])
    if company == "a short prompt":
        model.engine.step()
        others = [begin(model, some_prompts(model, 12)[0])]
    before = len(long.job.chunks)
    with model.engine.gathering.expecting("late"):
        for _ in range(4):
            model.engine.step()
        assert len(long.job.chunks) > before
    run(model)
    assert all(turn.whole for turn in [long, *others])


def test_a_turn_that_came_is_not_waited_for(model: LoadedModel, computed: list[list[int]]) -> None:
    with model.engine.gathering.expecting("late"):
        model.engine.gathering.came("late")
        begin(model, some_prompts(model, 12)[0])
        model.engine.step()
        assert computed == [[12]]
    run(model)


def test_nobody_waits_twice_for_the_same_turn(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(gathering, "_SECONDS", 0.1)
    waits = Gathering()
    with monkeypatch.context() as patch:
        patch.setattr(gathering, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda _: None))
        with waits.expecting("long"):
            assert waits.waits(idle=True) and waits.expected == 1
            assert not waits.waits(idle=False)
            clock[0] += 0.11
            assert not waits.waits(idle=True) and waits.expected == 0
            with waits.expecting("another"):
                assert waits.waits(idle=True) and waits.expected == 1
            for number in range(9):  # Turns that come and come do not delay the first for more than that.
                with waits.expecting(number):
                    found = waits.waits(idle=True)
                    clock[0] += 0.03
            assert not found


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
    with model.engine.gathering.expecting("late"):
        for _ in range(4):
            model.engine.step()
        assert not drafted
    run(model)
    assert drafted and turn.said == plain.said
