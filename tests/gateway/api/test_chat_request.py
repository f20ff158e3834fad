import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.chat import ChatRequest, chat_exchange
from gateway.api.exchange import Incoming


def translate(**fields: Any) -> inference_pb2.GenerateRequest:
    data = {"model": "org/m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return chat_exchange(ChatRequest.model_validate(data), Incoming("ns", "r1", "f" * 32, 7)).turns[0]


def test_what_is_not_given_is_the_models_default() -> None:
    assert translate().sampling == types_pb2.Sampling()
    assert translate(temperature=0).sampling.temperature == 0.0
    assert not translate(max_tokens=-1).HasField("max_tokens")


def test_sampling_passes() -> None:
    given_fields = {"top_p": 0.5, "top_k": 7, "min_p": 0.25, "presence_penalty": -1.5, "frequency_penalty": 0.5}
    sampling = translate(**given_fields, repetition_penalty=1.25, logit_bias={"5": -100, "7": 0.5}).sampling
    assert {name: getattr(sampling, name) for name in given_fields} == given_fields
    assert sampling.repetition_penalty == 1.25
    assert dict(sampling.logit_bias) == {5: -100.0, 7: 0.5}


@given(st.integers(-(2**63), 2**64 - 1))
def test_every_seed_fits(seed: int) -> None:
    assert translate(seed=seed).sampling.seed == seed % 2**64


def test_messages_pass() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"é": 1}'}}]
    request = translate(
        messages=[
            {"role": "developer", "content": "be nice"},
            {"role": "user", "content": "hi", "name": "bob"},
            {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "hm"},
            {"role": "tool", "content": "42", "tool_call_id": "1"},
        ]
    )
    system, user, assistant, tool = request.messages.messages
    assert (system.role, system.content) == ("system", "be nice")
    assert (user.name, user.HasField("tool_calls_json")) == ("bob", False)
    assert json.loads(assistant.tool_calls_json) == calls
    assert (assistant.content, assistant.reasoning_content) == ("", "hm")
    assert tool.tool_call_id == "1"


def test_stops_limits_and_logprobs() -> None:
    assert translate(stop="a").stop == ["a"]
    assert translate(stop=["a", "b"]).stop == ["a", "b"]
    assert translate(max_tokens=5).max_tokens == 5
    assert translate(max_completion_tokens=6).max_tokens == 6
    assert translate(max_tokens=6, max_completion_tokens=6).max_tokens == 6
    assert translate(logprobs=True).top_logprobs == 0
    assert translate(logprobs=True).HasField("top_logprobs")
    assert translate(logprobs=True, top_logprobs=3).top_logprobs == 3
    assert not translate(logprobs=False).HasField("top_logprobs")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 3, "logprobs": False}, "top_logprobs"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        translate(**fields)
    assert caught.value.field == field
