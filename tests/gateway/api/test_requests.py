"""Requests become turns of the contract."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.messages import to_count
from gateway.api.messages_schema import CountTokensRequest
from gateway.api.openai import MAX_CHOICE_BYTES, choices

from .dialects import INCOMING, USER, exchange, refusal, turn

LOGPROBS = ["message.output_text.logprobs"]
TOOLS = [{"name": "look", "input_schema": {"type": "object"}}]


@pytest.mark.parametrize(
    ("dialect", "fields", "passed"),
    [
        ("chat", {"temperature": 0}, {"sampling.temperature": 0}),
        ("chat", {"top_p": 0.5, "top_k": 7, "min_p": 0.25}, {"sampling.top_p": 0.5, "sampling.min_p": 0.25}),
        ("chat", {"presence_penalty": -1.5}, {"sampling.presence_penalty": -1.5}),
        ("chat", {"frequency_penalty": 0.5}, {"sampling.frequency_penalty": 0.5}),
        ("chat", {"repetition_penalty": 1.25}, {"sampling.repetition_penalty": 1.25}),
        ("chat", {"logit_bias": {"5": -100, "7": 0.5}}, {"sampling.logit_bias": {5: -100, 7: 0.5}}),
        ("chat", {"stop": "a"}, {"stop": ["a"]}),
        ("chat", {"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
        ("chat", {"max_tokens": 5}, {"max_tokens": 5}),
        ("chat", {"max_tokens": 6, "max_completion_tokens": 6}, {"max_tokens": 6}),
        ("chat", {"max_completion_tokens": 6}, {"max_tokens": 6}),
        ("chat", {"max_tokens": -1}, {"max_tokens": None, "top_logprobs": None}),
        ("chat", {"logprobs": True}, {"top_logprobs": 0}),
        ("chat", {"logprobs": True, "top_logprobs": 3}, {"top_logprobs": 3}),
        ("chat", {"logprobs": False}, {"top_logprobs": None}),
        ("completions", {"stop": "a", "seed": -1}, {"stop": ["a"], "sampling.seed": 2**64 - 1, "max_tokens": 16}),
        ("completions", {"top_k": 7}, {"sampling.top_k": 7, "sampling.temperature": None, "top_logprobs": None}),
        ("completions", {"max_tokens": 5, "temperature": 0}, {"max_tokens": 5, "sampling.temperature": 0}),
        ("completions", {"logprobs": 0, "max_tokens": -1}, {"top_logprobs": 0, "max_tokens": None}),
        ("completions", {"logprobs": 3}, {"top_logprobs": 3, "prompt": "hi", "key.model_id": "m"}),
        ("completions", {"parse_special": None}, {"parse_special": True}),
        ("completions", {"parse_special": False}, {"parse_special": False}),
        ("completions", {"prompt": [1, 2]}, {"token_ids.ids": [1, 2]}),
        ("messages", {"temperature": 0, "top_p": 0.5}, {"sampling.temperature": 0, "sampling.top_p": 0.5}),
        ("messages", {"top_k": 7}, {"sampling.top_k": 7, "sampling.temperature": None}),
        ("messages", {"stop_sequences": ["x"]}, {"stop": ["x"], "max_tokens": 9}),
        ("responses", {"max_output_tokens": 5}, {"max_tokens": 5, "sampling.temperature": None, "top_logprobs": None}),
        ("responses", {"temperature": 0, "top_p": 0.5}, {"sampling.temperature": 0, "max_tokens": None}),
        ("responses", {"include": LOGPROBS}, {"top_logprobs": 0}),
        ("responses", {"include": LOGPROBS, "top_logprobs": 3}, {"top_logprobs": 3}),
        ("responses", {"include": ["reasoning.encrypted_content"]}, {"top_logprobs": None}),
    ],
)
def test_parameters_pass(dialect: str, fields: dict[str, Any], passed: dict[str, Any]) -> None:
    made = turn(dialect, **fields)
    assert (made.key.namespace, made.key.agent_id, made.key.model_id) == ("ns", "", "m")
    for path, value in passed.items():
        *outer, last = path.split(".")
        message: Any = made
        for name in outer:
            message = getattr(message, name)
        if message.DESCRIPTOR.fields_by_name[last].has_presence:
            assert message.HasField(last) == (value is not None)
        assert value is None or getattr(message, last) == value


@pytest.mark.parametrize("dialect", ["chat", "completions", "messages", "responses"])
def test_what_is_not_given_is_the_models_default(dialect: str) -> None:
    assert turn(dialect).sampling == types_pb2.Sampling()


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("chat", {"prompt_cache_key": "k"}),
        ("responses", {"prompt_cache_key": "k"}),
        ("messages", {"metadata": {"user_id": "k"}}),
    ],
)
def test_labels_narrow_the_search(dialect: str, fields: dict[str, Any]) -> None:
    assert [exchange(dialect, **each, stream=True).label for each in ({}, fields)] == ["", "k"]
    assert exchange(dialect, stream=True).streamed and not exchange(dialect).streamed


@given(st.integers(-(2**63), 2**64 - 1))
def test_every_seed_fits(seed: int) -> None:
    assert turn("chat", seed=seed).sampling.seed == seed % 2**64


def test_messages_pass() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"é": 1}'}}]
    messages = [
        {"role": "developer", "content": "be nice"},
        {"role": "user", "content": "hi", "name": "bob"},
        {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "hm"},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]
    system, user, assistant, tool = turn("chat", messages=messages).messages.messages
    assert (system.role, system.content) == ("system", "be nice")
    assert (user.name, user.HasField("tool_calls_json")) == ("bob", False)
    assert json.loads(assistant.tool_calls_json) == calls
    assert (assistant.content, assistant.reasoning_content) == ("", "hm")
    assert tool.tool_call_id == "1"


NAMED = INCOMING._replace(agent_id="bob")


@pytest.mark.parametrize(
    ("dialect", "fields", "field"),
    [
        ("chat", {"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ("chat", {"top_logprobs": 3}, "top_logprobs"),
        ("chat", {"top_logprobs": 3, "logprobs": False}, "top_logprobs"),
        ("completions", {"best_of": 2}, "best_of"),
        ("completions", {"best_of": 1, "n": 2}, "best_of"),
        ("completions", {"prompt": ["a", "b"]}, "prompt"),
        ("responses", {"top_logprobs": 3}, "top_logprobs"),
    ],
)
def test_contradictions_are_refused(dialect: str, fields: dict[str, Any], field: str) -> None:
    assert refusal(dialect, NAMED, **fields).field == field


def test_choices_go_prompt_by_prompt_under_seeds_of_their_own() -> None:
    turns = exchange("completions", prompt=["a", "b"], n=3, seed=2**64 - 1).turns
    assert [(each.prompt, each.sampling.seed) for each in turns] == [
        (prompt, seed) for prompt in "ab" for seed in (2**64 - 1, 0, 1)
    ]
    alone = inference_pb2.GenerateRequest(prompt="hi")
    assert choices([alone], 3) == (alone, alone, alone), "without a seed all are random"
    assert [list(each.token_ids.ids) for each in exchange("completions", prompt=[[1, 2], [3]]).turns] == [[1, 2], [3]]


def test_choices_have_a_limit_of_number_and_of_bytes() -> None:
    assert len(exchange("completions", prompt=["a"] * 32, n=2).turns) == 64
    assert refusal("completions", prompt=["a"] * 33, n=2).field == "prompt"
    long = inference_pb2.GenerateRequest(prompt="x" * (MAX_CHOICE_BYTES // 8))
    assert len(choices([long], 7)) == len(choices([long] * 3, 2)) + 1 == 7
    assert len(choices([long] * 9, 1)) == 9  # as many as came
    for turns, number in (([long], 8), ([long] * 4, 2)):
        with pytest.raises(InvalidArgument, match="n: asks for too many choices"):
            choices(turns, number)


@pytest.mark.parametrize(
    ("fields", "offered"),
    [
        ({}, False),
        ({"tools": []}, False),
        ({"tools": TOOLS}, True),
        ({"tools": TOOLS, "tool_choice": {"type": "auto"}}, True),
        ({"tools": TOOLS, "tool_choice": {"type": "none"}}, False),
        ({"tool_choice": {"type": "auto"}}, False),
    ],
)
def test_tools_of_messages(fields: dict[str, Any], offered: bool) -> None:
    made = turn("messages", **fields)
    assert made.tool_calls == made.messages.HasField("tools_json") == offered


def test_counting_asks_for_the_same_prompt() -> None:
    prompt = {"model": "org/m", "messages": [USER], "system": "s", "tools": TOOLS}
    counted = to_count(CountTokensRequest.model_validate(prompt), "ns")
    assert (counted.key.namespace, counted.key.model_id) == ("ns", "org/m")
    assert counted.messages == turn("messages", **prompt).messages


SCHEMA = {"type": "object", "properties": {"ü": {"type": "null"}, "a": {"const": "\ud83d\ude00"}}, "required": ["a"]}
_TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        *(
            (
                "chat",
                {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, **each}}},
            )
            for each in ({}, {"strict": True}, {"strict": False}, {"strict": None, "description": "d"})
        ),
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}, "tools": _TOOLS}),
        ("responses", {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}),
        ("messages", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
    ],
)
def test_a_schema_passes_in_its_order_whether_strict_or_not(dialect: str, fields: dict[str, Any]) -> None:
    text = turn(dialect, **fields).json_schema
    assert list(json.loads(text)["properties"]) == ["ü", "a"]
    assert json.loads(text) == json.loads(json.dumps(SCHEMA))
    assert "ü" in text, "its size is counted in UTF-8"


@pytest.mark.parametrize(
    ("dialect", "fields", "held"),
    [
        ("chat", {"response_format": None}, None),
        ("chat", {"response_format": {"type": "text"}, "tools": _TOOLS}, None),
        ("chat", {"response_format": {"type": "json_object"}}, {"type": "object"}),
        ("responses", {"text": {"format": {"type": "text"}}}, None),
        ("responses", {"text": {"format": {"type": "json_object"}}}, {"type": "object"}),
        ("messages", {"output_config": {}}, None),
    ],
)
def test_other_formats(dialect: str, fields: dict[str, Any], held: Any) -> None:
    made = turn(dialect, **fields)
    assert (json.loads(made.json_schema) if made.HasField("json_schema") else None) == held


LOW, NONE = {"reasoning_effort": "low"}, {"enable_thinking": False, "reasoning_effort": "none"}
THINKS, SILENT = {"enable_thinking": True}, {"enable_thinking": False}


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({}, None),
        ({"chat_template_kwargs": {}}, None),
        (SILENT, SILENT),
        ({"thinking": {"type": "disabled"}}, SILENT),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, THINKS),
        ({"thinking": True}, THINKS),
        ({"reasoning": {"enabled": False}}, SILENT),
        ({"reasoning": {"effort": "low", "exclude": True}}, LOW),
        ({**LOW, "reasoning": {"effort": "low"}}, LOW),
        ({"reasoning_effort": "none"}, NONE),
        ({**THINKS, "reasoning_effort": "none"}, {**NONE, **THINKS}),
        ({**THINKS, "chat_template_kwargs": {**THINKS, "é": [1]}}, {**THINKS, "é": [1]}),
        ({**THINKS, "thinking": {"type": "disabled"}}, SILENT),
        ({**THINKS, "chat_template_kwargs": SILENT}, THINKS),
        ({**LOW, "reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ({**LOW, "chat_template_kwargs": {"a": 1, "reasoning_effort": "high"}}, {"a": 1, **LOW}),
    ],
)
def test_words_for_thinking(fields: dict[str, Any], arguments: Any) -> None:
    messages = turn("chat", **fields).messages
    found = json.loads(messages.template_arguments_json) if messages.HasField("template_arguments_json") else None
    assert found == arguments
