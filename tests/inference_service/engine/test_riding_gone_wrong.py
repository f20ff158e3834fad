"""Riders that are cancelled, fail or lack memory harm no other."""

from typing import Any

import mlx.core as mx
import pytest

from agentmem.errors import Cancelled, ResourceExhausted
from inference_service.engine.computing import EstimatedCost
from inference_service.engine.headroom import Headroom
from inference_service.engine.paged.passes import Pass
from inference_service.models.loaded import LoadedModel
from tests.inference_service.directories import written_by
from tests.inference_service.engine.batch_turns import begin, prompt_of, right, run, until_told
from tests.inference_service.engine.riders import LENGTHS, RIDING, some_prompts
from tests.oracle import Oracle

pytestmark = pytest.mark.sampled(3)


directory = written_by(RIDING, ["llama", "gemma3", "latents"])


@pytest.mark.usefixtures("rides")
@pytest.mark.parametrize("when", ["waiting", "under way", "told"])
def test_a_rider_that_is_cancelled_harms_no_other(model: LoadedModel, oracle: Oracle, when: str) -> None:
    other = begin(model, prompt_of(model, 8, 1), 20)
    until_told(model, [other], 2)
    gone, *stay = (begin(model, prompt) for prompt in some_prompts(model, *LENGTHS[1:]))
    for _ in range(("waiting", "under way", "told").index(when)):
        model.engine.step()
    assert bool(gone.events) == (when == "told")
    gone.cancelled.set()
    model.engine.step()
    assert isinstance(gone.job.future.exception(0), Cancelled)
    assert len(gone.events) == (when == "told") and gone.job.kv is None
    run(model)
    assert all(right(oracle, turn) and turn.whole and not turn.job.alone for turn in (other, *stay))


@pytest.mark.usefixtures("rides")
@pytest.mark.parametrize("where", ["compute", "emit", "begin"])
def test_only_the_guilty_one_of_a_pass_fails(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    other = begin(model, prompt_of(model, 8, 1), 20)
    until_told(model, [other], 3)
    bad, *stay = (begin(model, prompt) for prompt in some_prompts(model, *LENGTHS[1:]))
    compute = model.arenas.compute

    def refused(*_: Any) -> Any:
        raise ValueError("no such token")

    def failing(network: Any, of: Pass, tokens: mx.array) -> Any:
        found = compute(network, of, tokens)
        return refused() if any(piece.sequence is bad.job.kv for piece in of.pieces) else found

    match where:
        case "compute":
            monkeypatch.setattr(model.arenas, "compute", failing)
        case "emit":
            bad.job.emit = refused
        case "begin":
            bad.job.begin = refused
    run(model)
    assert "no such token" in str(bad.job.future.exception(0)) and bad.job.kv is None
    assert all(right(oracle, turn) and turn.whole for turn in (other, *stay))
    assert [len(turn.events) for turn in (other, *stay)] == [20, 12, 12, 12]
    assert {turn.job.alone for turn in (other, *stay)} == {where == "compute"}
    wanted = [begin(model, turn.job.sequence, len(turn.events)) for turn in (other, *stay)]
    monkeypatch.undo()
    run(model)
    assert [turn.said for turn in (other, *stay)] == [turn.said for turn in wanted]


@pytest.mark.usefixtures("rides")
@pytest.mark.parametrize("tokens", [0, 150, 1000])
def test_as_many_ride_together_as_there_is_memory_for(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch, computed: list[list[int]], tokens: int
) -> None:
    """By what the tokens of a pass take besides K and V. Up to 64 take less than what always stays free."""
    cost = EstimatedCost(token_bytes=1000, key_bytes=0)
    monkeypatch.setattr(model.engine, "headroom", Headroom(1 << 30, free=lambda: 1500 * tokens, cost=cost))
    turns = [begin(model, prompt) for prompt in some_prompts(model, 20, 70, 71, 72)]
    run(model)
    stay = turns if tokens else turns[:1]
    for turn in turns[len(stay) :]:
        with pytest.raises(ResourceExhausted, match=r"(69|70|71) tokens of the prompt needed about"):
            turn.job.future.result(0)
    assert all(right(oracle, turn) and turn.whole and not turn.job.alone for turn in stay)
    riding = [prompts for passed in computed if (prompts := [n for n in passed if n > 1])]
    assert riding == {0: [[20]], 150: [[20, 70], [71, 72]], 1000: [[20, 70, 71, 72]]}[tokens]
