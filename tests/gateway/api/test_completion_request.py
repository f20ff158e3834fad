from typing import Any

import pytest

from agentmem.errors import InvalidArgument
from gateway.api.completions import CompletionRequest, completion_exchange
from gateway.api.exchange import Exchange, Incoming

INCOMING = Incoming("ns", "r1", "f" * 32, 7)


def exchange(incoming: Incoming = INCOMING, **fields: Any) -> Exchange:
    return completion_exchange(CompletionRequest.model_validate({"model": "m", "prompt": "hi", **fields}), incoming)


def test_parameters_pass() -> None:
    (turn,) = exchange(stop="a", seed=-1, top_k=7, logprobs=3).turns
    assert (turn.key.namespace, turn.key.agent_id, turn.key.model_id) == ("ns", "", "m")
    assert (turn.prompt, turn.request_id, turn.max_tokens, list(turn.stop)) == ("hi", "r1", 16, ["a"])
    assert (turn.sampling.seed, turn.sampling.top_k) == (2**64 - 1, 7) and not turn.sampling.HasField("temperature")
    assert turn.top_logprobs == 3
    (turn,) = exchange(max_tokens=5, temperature=0, logprobs=0).turns
    assert (turn.max_tokens, turn.sampling.temperature, turn.top_logprobs) == (5, 0.0, 0)
    assert not exchange(max_tokens=-1).turns[0].HasField("max_tokens")
    assert turn.HasField("top_logprobs") and not exchange().turns[0].HasField("top_logprobs")


@pytest.mark.parametrize(
    ("fields", "parsed"), [({}, True), ({"parse_special": None}, True), ({"parse_special": False}, False)]
)
def test_special_tokens_are_parsed_unless_it_is_said_otherwise(fields: dict[str, Any], parsed: bool) -> None:
    assert [turn.parse_special for turn in exchange(prompt=["a", "b"], **fields).turns] == [parsed, parsed]


def test_tokens_go_as_they_are() -> None:
    assert [list(turn.token_ids.ids) for turn in exchange(prompt=[[1, 2], [3]]).turns] == [[1, 2], [3]]


def test_choices_go_prompt_by_prompt_under_seeds_of_their_own() -> None:
    turns = exchange(prompt=["a", "b"], n=2, seed=5).turns
    assert [(turn.prompt, turn.sampling.seed) for turn in turns] == [("a", 5), ("a", 6), ("b", 5), ("b", 6)]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"best_of": 2}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"prompt": ["a", "b"]}, "prompt"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        exchange(INCOMING._replace(agent_id="bob"), **fields)
    assert caught.value.field == field


def test_too_many_choices_are_refused() -> None:
    assert len(exchange(prompt=["a"] * 32, n=2).turns) == 64
    with pytest.raises(InvalidArgument) as caught:
        exchange(prompt=["a"] * 33, n=2)
    assert caught.value.field == "prompt"
