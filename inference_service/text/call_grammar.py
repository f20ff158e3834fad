"""What an answer that may call tools is held to: the model's own syntax of calls around the JSON Schemas of their
arguments, as a grammar in llguidance's dialect of Lark. Pure.
"""

import json
from collections.abc import Iterable
from typing import Any

from inference_service.domain import HeldAnswer
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


def answer_grammar(answer: HeldAnswer, syntax: CallSyntax, tokenizer: Tokenizer) -> str:
    """The grammar of the whole answer. `syntax` has a form."""
    start = syntax.start.decode()
    # Where a call goes to the end of the turn, and where one marker is for all calls, nothing follows them.
    last = answer.single or syntax.form is not Form.OBJECT
    calls = "mark call" if last else "mark call (WS? mark call)*"
    rules = [f"mark: {_marker(start, tokenizer)}", f"WS: /{WHITESPACE}/", *_call(answer, syntax, tokenizer)]
    if answer.required:
        whole = calls
    elif answer.json_schema is not None:
        whole = f"{calls} | %json {with_options(answer.json_schema)}"
    else:
        whole = "free TEXT? | free begun call" if last else "(free begun call)* free TEXT?"
        # However the marker is spelled, it begins a call: a lazy lexeme ends where its text has the marker.
        rules += [
            f"free: {_other_specials(start, tokenizer)}",
            "begun: TEXT? mark | spelled",
            f"spelled[lazy]: /(?s:.*)/ {_literal(start)}",
            "TEXT: /(?s:.+)/",
        ]
    return "\n".join(["%llguidance {}", f"start: {whole}", *rules, ""])


def with_options(schema: str) -> str:
    """A JSON Schema with how it is to be compiled."""
    return json.dumps({**json.loads(schema), "x-guidance": JSON_OPTIONS}, ensure_ascii=False)


def _call(answer: HeldAnswer, syntax: CallSyntax, tokenizer: Tokenizer) -> list[str]:
    """The rules of `call`: what follows the marker that calls start with, up to the end of the call or of all calls."""

    def marker(text: str) -> str:
        return _marker(text, tokenizer)

    numbered = list(enumerate(answer.tools))
    match syntax.form:
        case Form.NAMED:
            call = _several("named", "mark named", answer)
            tools = [f"{_literal(tool.name)} {marker(_ARGUMENTS_OF_MISTRAL)} WS? json_{i}" for i, tool in numbered]
            one = "named: WS? tool"
        case Form.KIMI:
            call = f"{_several('numbered', 'numbered', answer)} WS? {marker(syntax.end.decode())}"
            tools = [
                f"{_literal(f'functions.{tool.name}:')} /[0-9]{{1,4}}/ {marker(_ARGUMENTS_OF_KIMI)} WS? json_{i}"
                for i, tool in numbered
            ]
            one = f"numbered: WS? {marker(_CALL_OF_KIMI)} tool WS? {marker(_END_OF_KIMI)}"
        case _:
            name, arguments = _literal('"name"'), _literal('"arguments"')
            tools = [
                f'{name} WS? ":" WS? {_literal(json.dumps(tool.name, ensure_ascii=False))} WS? "," WS? '
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
    return f"<[{tokenizer.special_id(text)}]>" if tokenizer.is_special(text.encode()) else _literal(text)


def _other_specials(start: str, tokenizer: Tokenizer) -> str:
    """Text that goes up to special tokens that neither begin a call nor end the turn."""
    barred = {*tokenizer.eos_ids, *([tokenizer.special_id(start)] if tokenizer.is_special(start.encode()) else [])}
    return (
        f"(TEXT? <[{','.join(_ranges(tokenizer.special_ids - barred))}]>)*" if tokenizer.special_ids - barred else '""'
    )


def _ranges(numbers: Iterable[int]) -> list[str]:
    """Numbers as ranges."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return [f"{low}-{high}" if low < high else f"{low}" for low, high in ranges]


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
