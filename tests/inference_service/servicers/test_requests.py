import inspect
import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from agentmem.validation import AgentKey
from inference_service.domain import AppendInput, MessagesInput, TextInput, TokensInput
from inference_service.servicers.requests import generate_request, prefill_request, turn_input

Request = inference_pb2.GenerateRequest
Choice = inference_pb2.ToolChoice
KEY = types_pb2.AgentKey(namespace="ns", agent_id="agent", model_id="model")
NAN, INF = float("nan"), float("inf")


def messages(**fields: Any) -> types_pb2.Messages:
    return types_pb2.Messages(messages=[types_pb2.ChatMessage(role="user", content="x")], **fields)


def request(**fields: Any) -> Request:
    inputs = {"messages", "prompt", "append", "token_ids"}
    return Request(**{"key": KEY, **({} if inputs & fields.keys() else {"prompt": "hello"}), **fields})


def sampled(**fields: Any) -> Request:
    return request(sampling=types_pb2.Sampling(**fields))


def chat(**fields: Any) -> Request:
    return request(messages=messages(**fields))


def appended(**fields: Any) -> Request:
    return request(append=types_pb2.Append(messages=messages(**fields)))


def keyed(**fields: str) -> Request:
    parts = {"namespace": "ns", "agent_id": "agent", "model_id": "model"}
    return request(key=types_pb2.AgentKey(**{**parts, **fields}))


def one_message(**fields: Any) -> Request:
    good = types_pb2.ChatMessage(role="user", content="x")
    bad = types_pb2.ChatMessage(**{"role": "user", "content": "x", **fields})
    return request(messages=types_pb2.Messages(messages=[good, bad]))


WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"properties": {"city": {}}}}}


def held(tools: list[Any], **fields: Any) -> Request:
    return request(messages=messages(tools_json=json.dumps(tools)), tool_calls=True, tool_choice=Choice(**fields))


LONG = "é" * 128 + "x"
"""257 bytes of UTF-8."""

BAD: list[tuple[Request, str]] = [
    (Request(prompt="x"), "key.namespace"),
    (keyed(namespace=""), "key.namespace"),
    (keyed(model_id=""), "key.model_id"),
    (keyed(namespace=LONG), "key.namespace"),
    (keyed(agent_id=LONG), "key.agent_id"),
    (keyed(model_id=LONG), "key.model_id"),
    (request(request_id="x" * 129), "request_id"),
    (Request(key=KEY), "input"),
    (request(prompt=""), "prompt"),
    (request(token_ids=types_pb2.TokenIds()), "token_ids.ids"),
    (request(append=types_pb2.Append()), "append.content"),
    (request(append=types_pb2.Append(text="x"), memory_mode=inference_pb2.MEMORY_MODE_REPLACE), "memory_mode"),
    (request(memory_mode=9), "memory_mode"),
    (request(append=types_pb2.Append(text="")), "append.text"),
    (request(append=types_pb2.Append(messages=types_pb2.Messages())), "append.messages"),
    (request(key=types_pb2.AgentKey(namespace="ns", model_id="m"), append=types_pb2.Append(text="x")), "append"),
    (request(messages=types_pb2.Messages()), "messages"),
    (one_message(role=""), "messages.messages[1].role"),
    (one_message(tool_calls_json="{"), "messages.messages[1].tool_calls_json"),
    (one_message(tool_calls_json=""), "messages.messages[1].tool_calls_json"),
    (one_message(tool_calls_json="{}"), "messages.messages[1].tool_calls_json"),
    (one_message(tool_calls_json='["\\ud800"]'), "messages.messages[1].tool_calls_json"),
    (one_message(tool_calls_json="[" * 100_000), "messages.messages[1].tool_calls_json"),
    (one_message(tool_calls_json=f"[{'1' * 5000}]"), "messages.messages[1].tool_calls_json"),
    (chat(tools_json="{}"), "messages.tools_json"),
    (chat(tools_json="[1]"), "messages.tools_json"),
    (chat(tools_json='[{"name": "\\udc00"}]'), "messages.tools_json"),
    (chat(tools_json="nonsense"), "messages.tools_json"),
    (chat(template_arguments_json="[]"), "messages.template_arguments_json"),
    (chat(template_arguments_json="null"), "messages.template_arguments_json"),
    (chat(template_arguments_json="{"), "messages.template_arguments_json"),
    (appended(tools_json="{}"), "append.messages.tools_json"),
    (appended(template_arguments_json="1"), "append.messages.template_arguments_json"),
    (request(max_tokens=0), "max_tokens"),
    (request(top_logprobs=21), "top_logprobs"),
    (request(stop=["x", ""]), "stop[1]"),
    (request(stop=["x", "y", LONG]), "stop[2]"),
    (request(cache_policy=99), "cache_policy"),
    (request(cache_policy=-1), "cache_policy"),
    (request(json_schema=""), "json_schema"),
    (request(json_schema="{"), "json_schema"),
    (request(json_schema="true"), "json_schema"),
    (request(json_schema='[{"type": "object"}]'), "json_schema"),
    (request(json_schema='{"title": "\\ud800"}'), "json_schema"),
    (request(json_schema='{"title": "' + "é" * 32 * 1024 + '"}'), "json_schema"),
    (request(json_schema='{"items": ' * 64 + "{}" + "}" * 64), "json_schema"),
    (request(json_schema='{"x-guidance": {}}'), "json_schema"),
    (request(tool_choice=Choice()), "tool_choice"),
    (request(tool_choice=Choice(required=True), tool_calls=True), "tool_choice"),
    (held([], required=True), "tool_choice"),
    (held([WEATHER], names=["get_time"]), "tool_choice.names"),
    (held([WEATHER], strict=["get_weather", "get_time"]), "tool_choice.strict"),
    (held([WEATHER, WEATHER]), "messages.tools_json"),
    (held([WEATHER, {"type": "function"}]), "messages.tools_json[1]"),
    (held([{"type": "function", "function": {"name": ""}}]), "messages.tools_json[0]"),
    (held([{"type": "function", "function": {"name": "f", "parameters": []}}]), "messages.tools_json[0]"),
    (held([{"function": {"name": "f", "parameters": {"type": "array"}}}]), "messages.tools_json[0]"),
    (held([{"function": {"name": "f", "parameters": {"title": "é" * 32 * 1024}}}]), "messages.tools_json[0]"),
    (request(json_schema="{}", sampling=types_pb2.Sampling(ignore_eos=True)), "sampling.ignore_eos"),
    (sampled(logit_bias={3: NAN}), "sampling.logit_bias[3]"),
    (sampled(logit_bias={3: -INF}), "sampling.logit_bias[3]"),
    (sampled(logit_bias={2: 1, 3: 3e38}), "sampling.logit_bias[3]"),
    (one_message(role="r" * 257), "messages.messages[1].role"),
    (one_message(name="n" * 257), "messages.messages[1].name"),
    (one_message(tool_call_id="i" * (64 * 1024 + 1)), "messages.messages[1].tool_call_id"),
    (chat(tools_json=json.dumps([{}] * 1025)), "messages.tools_json"),
    (chat(tools_json="[" + "[]," * 260_000 + "[]]"), "messages"),
    (appended(template_arguments_json='{"a": [' + "1," * 500_000 + "1]}"), "append.messages"),
    (one_message(tool_calls_json='"' + "[" * 500_001 + '"'), "messages"),
    *[(chat(template_arguments_json=json.dumps({name: 1})), "messages.template_arguments_json") for name in (
        "messages", *(name for name in inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
                      if name not in ("self", "kwargs")),
    )],
    *[(sampled(**{name: value}), f"sampling.{name}") for name, values in {
        "temperature": (-0.1, 2.1, NAN, INF, -INF),
        "top_p": (0.0, 1.1, -1, NAN, INF),
        "min_p": (-0.1, 1.1, NAN),
        "repetition_penalty": (0.0, 1e-38, 0.0099, 100.1, -1, NAN, INF),
        "presence_penalty": (-2.1, 2.1, NAN, INF),
        "frequency_penalty": (-2.1, 2.1, NAN, -INF),
    }.items() for value in values],
]  # fmt: skip


@pytest.mark.parametrize(("bad", "field"), BAD, ids=[f"{i}-{field}" for i, (_, field) in enumerate(BAD)])
def test_bad_fields_are_refused_by_name(bad: Request, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        generate_request(bad)
    assert caught.value.field == field


def test_what_is_given_and_what_is_not() -> None:
    good = request(request_id="r" * 128, if_version=0, stop=["a"] * 15 + ["é" * 128], max_tokens=1, top_logprobs=20)
    turn, bare = generate_request(good), generate_request(request())
    assert (turn.key, turn.input) == (AgentKey("ns", "agent", "model"), TextInput("hello"))
    given = ("request_id", "if_version", "max_tokens", "top_logprobs", "stop")
    assert [getattr(turn, name) for name in given] == ["r" * 128, 0, 1, 20, tuple(good.stop)]
    assert [getattr(bare, name) for name in given] == ["", None, None, None, ()]
    assert (bare.sampling, bare.json_schema) == (types_pb2.Sampling(), None)
    assert bare.commits and turn.generates
    assert not generate_request(keyed(agent_id="")).commits
    assert not generate_request(request(cache_policy=inference_pb2.CACHE_POLICY_READ_ONLY)).commits


def test_a_schema_passes_as_it_is_and_makes_another_turn() -> None:
    deepest = '{"items": ' * 63 + "{}" + "}" * 63
    turns = [generate_request(request(json_schema=text)) for text in ('{"type": "object" }', deepest)]
    assert [turn.json_schema for turn in turns] == ['{"type": "object" }', deepest]
    assert len({turn.digest for turn in (*turns, generate_request(request()))}) == 3


def test_what_calls_are_held_to() -> None:
    bare = {"type": "function", "function": {"name": "now"}}
    turn = generate_request(held([WEATHER, bare], names=["now"], single=True))
    assert turn.held is not None
    assert (turn.held.required, turn.held.single, turn.held.json_schema) == (False, True, None)
    (now,) = turn.held.tools
    assert (now.name, now.field, now.strict) == ("now", "messages.tools_json[1]", False)
    assert json.loads(now.arguments) == {"type": "object", "properties": {}, "additionalProperties": False}
    told = messages(tools_json=json.dumps([WEATHER]))
    appended_to = request(
        append=types_pb2.Append(messages=told), tool_calls=True, tool_choice=Choice(strict=["get_weather"])
    )
    answer = generate_request(appended_to).held
    assert answer is not None
    (weather,) = answer.tools
    assert (weather.field, weather.strict) == ("append.messages.tools_json[0]", True)
    assert json.loads(weather.arguments) == {"type": "object", "properties": {"city": {}}}
    beside = generate_request(request(messages=told, tool_calls=True, json_schema="{}")).held
    assert beside is not None
    assert beside.json_schema == "{}"
    assert generate_request(request(messages=told, tool_calls=True)).held is None


def test_every_arm() -> None:
    assert turn_input(request(token_ids=types_pb2.TokenIds(ids=[1, 2]))) == TokensInput((1, 2))
    assert turn_input(request(append=types_pb2.Append(text="x"))) == AppendInput(TextInput("x"))
    converted = turn_input(appended())
    assert converted == AppendInput(MessagesInput(({"role": "user", "content": "x"},)))


def test_messages_become_what_templates_take() -> None:
    call = [{"type": "function", "function": {"name": "f", "arguments": {"é": 1}}}]
    proto = types_pb2.Messages(
        messages=[
            types_pb2.ChatMessage(
                role="assistant",
                content="",
                name="n",
                reasoning_content="hm",
                tool_calls_json=json.dumps(call),
                tool_call_id="",
            )
        ],
        tools_json='[{"name": "f"}]',
        template_arguments_json='{"enable_thinking": false}',
    )
    converted = turn_input(request(messages=proto))
    said = {"role": "assistant", "content": "", "name": "n", "reasoning_content": "hm"}
    message = {**said, "tool_calls": call, "tool_call_id": ""}
    assert converted == MessagesInput((message,), ({"name": "f"},), {"enable_thinking": False})


def test_prefill() -> None:
    named = {"if_version": 3, "if_revision": bytes(16)}
    turn = prefill_request(inference_pb2.PrefillRequest(key=KEY, prompt="x", request_id="r", **named))  # type: ignore[arg-type]
    assert not turn.generates
    assert (turn.request_id, turn.if_version, turn.input) == ("r", 3, TextInput("x"))
    assert turn.if_revision == bytes(16)
    with pytest.raises(InvalidArgument, match="if_revision"):
        prefill_request(inference_pb2.PrefillRequest(key=KEY, prompt="x", if_revision=b"short"))
    with pytest.raises(InvalidArgument) as caught:
        prefill_request(inference_pb2.PrefillRequest(key=types_pb2.AgentKey(namespace="n", model_id="m"), prompt="x"))
    assert caught.value.field == "key.agent_id"
    with pytest.raises(InvalidArgument) as caught:
        prefill_request(inference_pb2.PrefillRequest(key=KEY, prompt="x", request_id="x" * 129))
    assert caught.value.field == "request_id"
