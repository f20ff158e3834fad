"""What an answer that may call tools is held to: the model's own syntax of calls around the JSON Schemas of their
arguments, as a grammar in llguidance's dialect of Lark. Pure.
"""

import json
from typing import Any

from inference_service.domain import HeldAnswer
from inference_service.text.lark import literal, token_ranges
from inference_service.text.thinking_grammar import Thinking
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.tool_calls import CallSyntax, Form

MAX_INDENT = 32
"""Spaces and tabs with which a line may begin between JSON's words."""

WHITESPACE = rf"[ \t]|\r?\n[ \t]{{0,{MAX_INDENT}}}"
"""What may stand in one place between JSON's words: one space, or a line end and an indentation. A model that has lost
the thread would go on with white space for ever."""

JSON_OPTIONS: dict[str, Any] = {
    "whitespace_pattern": WHITESPACE,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
}
"""How llguidance compiles a JSON Schema."""

_CALL_OF_KIMI, _ARGUMENTS_OF_KIMI, _END_OF_KIMI = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
_ARGUMENTS_OF_MISTRAL = "[ARGS]"


def answer_grammar(
    answer: HeldAnswer, syntax: CallSyntax, tokenizer: Tokenizer, thinking: Thinking | None = None
) -> str:
    """The grammar of the whole answer, behind what the model thinks. `syntax` has a form."""
    start = syntax.start.decode()
    # Where a call goes to the end of the turn, and where one marker is for all calls, nothing follows them.
    last = answer.single or syntax.form is not Form.OBJECT
    calls = "mark call" if last else "mark call (WS? mark call)*"
    rules = [f"mark: {_marker(start, tokenizer)}", f"WS: /{WHITESPACE}/", *_call(answer, syntax, tokenizer)]
    if answer.required:
        begin = _start(calls, thinking)
    elif answer.json_schema is not None:
        begin = _start(f"{calls} | %json {with_options(answer.json_schema)}", thinking)
    else:
        whole = "free TEXT? | free begun call" if last else "(free begun call)* free TEXT?"
        begin = thinking.before_text(whole) if thinking else [f"start: {whole}"]
        # However the marker is spelled, it begins a call: a lazy lexeme ends where its text has the marker.
        rules += [
            f"free: {_other_specials(start, tokenizer)}",
            "begun: TEXT? mark | spelled",
            f"spelled[lazy]: /(?s:.*)/ {literal(start)}",
            "TEXT: /(?s:.+)/",
        ]
    return "\n".join(["%llguidance {}", *begin, *rules, ""])


def schema_grammar(schema: str, thinking: Thinking) -> str:
    """The grammar of JSON that fits a schema, behind what the model thinks."""
    return "\n".join(["%llguidance {}", *_start("json", thinking), f"json: %json {with_options(schema)}", ""])


def with_options(schema: str) -> str:
    """A JSON Schema with how it is to be compiled."""
    return json.dumps({**json.loads(schema), "x-guidance": JSON_OPTIONS}, ensure_ascii=False)


def _start(answer: str, thinking: Thinking | None) -> list[str]:
    return thinking.before(answer) if thinking else [f"start: {answer}"]


def _call(answer: HeldAnswer, syntax: CallSyntax, tokenizer: Tokenizer) -> list[str]:
    """The rules of `call`: what follows the marker that calls start with, up to the end of the call or of all calls."""

    def marker(text: str) -> str:
        return _marker(text, tokenizer)

    numbered = list(enumerate(answer.tools))
    match syntax.form:
        case Form.NAMED:
            call = _several("named", "mark named", answer)
            tools = [f"{literal(tool.name)} {marker(_ARGUMENTS_OF_MISTRAL)} WS? json_{i}" for i, tool in numbered]
            one = "named: WS? tool"
        case Form.KIMI:
            call = f"{_several('numbered', 'numbered', answer)} WS? {marker(syntax.end.decode())}"
            tools = [
                f"{literal(f'functions.{tool.name}:')} /[0-9]{{1,4}}/ {marker(_ARGUMENTS_OF_KIMI)} WS? json_{i}"
                for i, tool in numbered
            ]
            one = f"numbered: WS? {marker(_CALL_OF_KIMI)} tool WS? {marker(_END_OF_KIMI)}"
        case _:
            name, arguments = literal('"name"'), literal('"arguments"')
            tools = [
                f'{name} WS? ":" WS? {literal(json.dumps(tool.name, ensure_ascii=False))} WS? "," WS? '
                f'{arguments} WS? ":" WS? json_{i}'
                for i, tool in numbered
            ]
            one = 'object: "{" WS? tool WS? "}"'
            if syntax.form is Form.ARRAY:
                objects = _several("object", 'WS? "," WS? object', answer)
                call = f'WS? "[" WS? {objects} WS? "]"'
            else:
                call = f"WS? object WS? {marker(syntax.end.decode())}"
    schemas = [f"json_{i}: %json {with_options(tool.arguments)}" for i, tool in numbered]
    return [f"call: {call}", one, f"tool: {' | '.join(tools)}", *schemas]


def _several(one: str, another: str, answer: HeldAnswer) -> str:
    return one if answer.single else f"{one} ({another})*"


def _marker(text: str, tokenizer: Tokenizer) -> str:
    """A marker as templates write it: where a special token is spelled so, that token."""
    return f"<[{tokenizer.special_id(text)}]>" if tokenizer.is_special(text.encode()) else literal(text)


def _other_specials(start: str, tokenizer: Tokenizer) -> str:
    """Text that goes up to special tokens that neither begin a call nor end the turn."""
    barred = {*tokenizer.eos_ids, *([tokenizer.special_id(start)] if tokenizer.is_special(start.encode()) else [])}
    others = tokenizer.special_ids - barred
    return f"(TEXT? {token_ranges(others)})*" if others else '""'
