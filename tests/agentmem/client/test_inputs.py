import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from agentmem import Message, ToolCall, ToolChoice, Version, errors
from agentmem.client import inputs
from agentmem.client.inputs import Beginning
from agentmem.v1 import inference_pb2, types_pb2

KEY = types_pb2.AgentKey(agent_id="marco", model_id="demo")
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def made(said: Any = "Hello", beginning: Beginning | None = None, **options: Any) -> inference_pb2.GenerateRequest:
    return inputs.generate(KEY, beginning or Beginning(), said, options)  # type: ignore[arg-type]


def test_each_turn_has_a_request_id() -> None:
    assert made().request_id != made().request_id
    assert made(request_id="mine").request_id == "mine"


def test_a_retry_from_another_process_is_the_same_request() -> None:
    def asked() -> inference_pb2.GenerateRequest:
        return made(beginning=Beginning(system="You are Marco."), request_id="mine")

    assert asked() == asked()


@pytest.mark.parametrize(
    ("system", "said", "mode"),
    [
        ("", "Hello", inference_pb2.MEMORY_MODE_APPEND),
        ("You are Marco.", "Hello", inference_pb2.MEMORY_MODE_AUTO),
        ("You are Marco.", [Message("user", "a"), Message("assistant", "b")], inference_pb2.MEMORY_MODE_APPEND),
    ],
)
def test_what_is_said_is_new(system: str, said: Any, mode: int) -> None:
    request = made(said, Beginning(system=system))
    assert request.memory_mode == mode
    assert request.messages.messages[0].role == ("system" if system else "user")


def test_messages_in_both_shapes() -> None:
    call = ToolCall("call_1", "look", '{"at": "the sea"}')
    said: Sequence[Message] = [Message("assistant", tool_calls=(call,)), Message("tool", "blue", tool_call_id="call_1")]
    function = {"name": "look", "arguments": call.arguments_json}
    openai = [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "blue", "tool_call_id": "call_1"},
    ]
    assert made(said).messages == made(openai).messages
    assert [Message.of(each) for each in made(openai).messages.messages] == said
    assert call.arguments == {"at": "the sea"}


def test_all_options() -> None:
    request = made(
        tools=[TOOL],
        template_arguments={"enable_thinking": False},
        template_time="2026-01-01",
        only_if=Version("u", 3, b"r" * 16),
        parse_special=True,
        label="chat",
        max_tokens=9,
        stop=["\n"],
        json_schema={"type": "object"},
        tool_choice=ToolChoice(required=True, names=("look",)),
        cache_policy="read_only",
        top_logprobs=2,
        temperature=0.5,
        logit_bias={7: -1.0},
        memory_mode="replace",
        beginning=Beginning(ttl=60, delete_after=timedelta(days=1), context_policy="summarize"),
    )
    assert json.loads(request.messages.tools_json) == [TOOL]
    assert request.tool_calls
    assert request.messages.template_arguments_json == '{"enable_thinking": false}'
    assert (request.if_version, request.if_revision) == (3, b"r" * 16)
    assert (request.template_time, request.parse_special, request.label) == ("2026-01-01", True, "chat")
    assert (request.max_tokens, list(request.stop), request.top_logprobs) == (9, ["\n"], 2)
    assert request.tool_choice == inference_pb2.ToolChoice(required=True, names=["look"])
    assert request.cache_policy == inference_pb2.CACHE_POLICY_READ_ONLY
    assert request.memory_mode == inference_pb2.MEMORY_MODE_REPLACE
    assert (request.expiry.ttl.seconds, request.expiry.delete_after.seconds) == (60, 86400)
    assert request.context_policy == types_pb2.CONTEXT_POLICY_SUMMARIZE
    assert dict(request.sampling.logit_bias) == {7: -1.0}


def test_what_is_sampled_is_sampled_again() -> None:
    assert made(temperature=0.7).sampling.HasField("seed")
    assert made(temperature=0.7, seed=7).sampling.seed == 7
    assert not made(temperature=0).sampling.HasField("seed")
    named = [made(request_id=name).sampling.seed for name in ("mine", "mine", "other")]
    assert named[0] == named[1] != named[2]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"memory_mode": "keep"}, "memory_mode"),
        ({"json_schema": {"a": object()}}, "json_schema"),
        ({"said": [{"role": "user", "content": ["parts"]}]}, "messages[0].content"),
        ({"said": {"role": "assistant", "tool_calls": [object()]}}, "message.tool_calls"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(errors.InvalidArgument) as raised:
        made(**options)
    assert raised.value.field == field


def test_one_text_that_stops_is_one() -> None:
    assert list(made(stop="END").stop) == ["END"]
