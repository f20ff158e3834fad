"""Answers held to calls: whatever is sampled parses by the model's own parser and fits the tools, and else is free."""

import importlib
import json
import random
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from agentmem.errors import InvalidArgument
from inference_service.domain import HeldAnswer, HeldTool
from inference_service.families.chats import call_form
from inference_service.text.answering import AnswerDelta, AnswerStream
from inference_service.text.grammar import Grammar, Grammars
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.tool_calls import CallSyntax
from tests.inference_service.real_tokenizers import byte_level_backend
from tests.inference_service.text.test_grammar import wander
from tests.json_schemas import Schema, fits

WEATHER: Schema = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Rome", 'Saint "Denis" // # \\ é']}},
}
TIME: Schema = {
    "type": "object",
    "properties": {"zone": {"enum": ["CET", "</tool_call>", '"</tool_call>\\']}},
    "required": ["zone"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "get_time": TIME}
MARKERS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|tool_calls_section_begin|>")
MARKERS += ("<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
SYNTAXES = {"json_tools": "", "kimi_k2": "", "mistral": "", "mistral with arguments": "[ARGS]"}
END = 2


@cache
def tokenizer(special: bool) -> Tokenizer:
    """Markers are special tokens, or spelled; "<think>" is special in both."""
    backend = byte_level_backend()
    backend.add_special_tokens([AddedToken("<think>", special=True, normalized=False)])
    backend.add_tokens([AddedToken(marker, special=special, normalized=False) for marker in MARKERS if special])
    return Tokenizer(backend, [END])


def syntax(name: str) -> CallSyntax:
    parser = name.split()[0]
    module: Any = importlib.import_module(f"mlx_lm.tool_parsers.{parser}")
    form = call_form(parser, SYNTAXES[name])
    return CallSyntax(
        parser, module.tool_call_start.encode(), module.tool_call_end.encode(), module.parse_tool_call, form
    )


def held(*names: str, strict: bool = True, **how: Any) -> HeldAnswer:
    tools = (HeldTool(name, json.dumps(SCHEMAS[name]), name, strict) for name in names or SCHEMAS)
    return HeldAnswer(tuple(tools), **how)


def compiled(answer: HeldAnswer, name: str = "json_tools", *, special: bool = True) -> Grammar:
    made = tokenizer(special)
    return Grammars(made, made.vocab_size + 7).compile_answer(answer, syntax(name))


def understood(token_ids: list[int], name: str, made: Tokenizer) -> AnswerDelta:
    stream = AnswerStream((), syntax(name))
    said = [stream.feed(b"" if i == END else made.token_bytes(i), visible=i not in made.special_ids) for i in token_ids]
    said.append(stream.finish(ended=True))
    calls = tuple(call for part in said for call in part.calls)
    return AnswerDelta(text="".join(part.text for part in said), calls=calls)


def follows(grammar: Grammar, token_ids: list[int]) -> int:
    for at, token_id in enumerate(token_ids):
        if not grammar.allowed()[token_id]:
            return at
        grammar.advance(token_id)
    return len(token_ids)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", SYNTAXES)
@given(seed=st.integers(0, 2**32), single=st.booleans(), names=st.sampled_from([(), ("get_time",)]))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_required_is_calls_that_parse_and_fit(
    name: str, special: bool, seed: int, single: bool, names: tuple[str, ...]
) -> None:
    made = tokenizer(special)
    grammar = compiled(held(*names, required=True, single=single), name, special=special)
    token_ids = wander(grammar, made, random.Random(seed), free=True)
    said = understood(token_ids, name, made)
    assert said.text == ""
    assert said.calls, made.decode(token_ids)
    assert len(said.calls) == 1 or not single
    for call in said.calls:
        assert call.name in (names or SCHEMAS)
        assert fits(call.arguments_json, SCHEMAS[call.name]), call


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", SYNTAXES)
@given(seed=st.integers(0, 2**32), before=st.sampled_from(["", "Well, <tool", "<think>hm"]), single=st.booleans())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_text_is_free_and_a_call_that_begins_is_held(
    name: str, special: bool, seed: int, before: str, single: bool
) -> None:
    made, how = tokenizer(special), syntax(name)
    grammar = compiled(held(single=single), name, special=special)
    opening = made.encode(before + how.start.decode(), parse_special=True)
    assert follows(grammar, opening) == len(opening)
    assert not grammar.allowed()[END], "a call that has begun must be made"
    token_ids = opening + wander(grammar, made, random.Random(seed), free=True)
    said = understood(token_ids, name, made)
    assert said.calls, made.decode(token_ids)
    assert len(said.calls) == 1 or not single
    assert all(fits(call.arguments_json, SCHEMAS[call.name]) for call in said.calls)


@pytest.mark.parametrize("special", [True, False])
def test_text_without_calls_is_not_touched(special: bool) -> None:
    made = tokenizer(special)
    grammar = compiled(held(), special=special)
    text = made.encode('<think>Which?</tool_call> {"a": 1}\n\n\n <tool_cal> é東', parse_special=True)
    assert follows(grammar, text) == len(text)
    free = grammar.allowed()
    assert free[END]
    assert free[: made.vocab_size].sum() > 0.6 * made.vocab_size, "all but halves of characters"


def test_a_marker_in_ordinary_tokens_begins_a_call_too() -> None:
    made = tokenizer(True)
    spelled = made.encode("so <tool_call>{", parse_special=False)
    grammar = compiled(held())
    assert follows(grammar, spelled) == len(spelled)
    assert not grammar.allowed()[made.encode("x", parse_special=False)[0]]


def test_calls_as_templates_write_them_are_allowed() -> None:
    calls = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
    both = f'{calls}\n<tool_call>{{"name":"get_time","arguments":{{"zone":"CET"}}}}</tool_call>'
    made = tokenizer(True)
    for text, required in ((both, True), (f"I look.\n{both}", False), (f"{calls}\nand {both} so", False)):
        token_ids = made.encode(text, parse_special=True)
        grammar = compiled(held(required=required))
        assert follows(grammar, token_ids) == len(token_ids), text
        assert grammar.allowed()[END]
    single = compiled(held(single=True))
    token_ids = made.encode(both, parse_special=True)
    assert follows(single, token_ids) == len(made.encode(calls, parse_special=True)), "nothing follows the only call"


@given(seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_beside_a_schema_the_answer_is_json_or_calls(seed: int) -> None:
    made, choice, fact = tokenizer(True), random.Random(seed), {"enum": ["yes", {"no": [1]}]}
    said = understood(wander(compiled(held(json_schema=json.dumps(fact))), made, choice, free=True), "json_tools", made)
    assert bool(said.calls) != fits(said.text, fact)


def test_of_a_tool_that_is_not_strict_what_cannot_be_honoured_is_let_go() -> None:
    odd = HeldTool("odd", '{"type": "object", "properties": {"a": {"uniqueItems": true}}}', "tools[3]", strict=False)
    made = tokenizer(True)
    grammar = compiled(HeldAnswer((odd,), required=True))
    token_ids = made.encode('<tool_call>{"name": "odd", "arguments": {"a": [1, 1]}}</tool_call>', parse_special=True)
    assert follows(grammar, token_ids) == len(token_ids)
    with pytest.raises(InvalidArgument) as refused:
        compiled(HeldAnswer((HeldTool("odd", odd.arguments, "tools[3]", strict=True),)))
    assert refused.value.field == "tools[3]"
    assert "uniqueItems cannot be honoured" in refused.value.problem
