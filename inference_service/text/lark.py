"""What an answer is held to, as a grammar in llguidance's dialect of Lark. Pure.

An answer is reasoning, then JSON, text or tool calls: those are in the model's own syntax around the JSON Schemas of
their arguments.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from inference_service.domain import HeldAnswer
from inference_service.text.reasoning import BEGINNING, CONTENT, REASONING, ReasoningFormat, controlled
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.tool_calls import CallSyntax, Form

MAX_INDENT = 32
"""Spaces and tabs with which a line may begin between JSON's words."""

_WHITESPACE = rf"[ \t]|\r?\n[ \t]{{0,{MAX_INDENT}}}"
"""What may stand in one place between JSON's words: one space, or a line end and an indentation. A model that has lost
the thread would go on with white space for ever."""

JSON_OPTIONS: dict[str, Any] = {
    "whitespace_pattern": _WHITESPACE,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
}
"""How llguidance compiles a JSON Schema."""

_HEAD = "%llguidance {}"
_CALL_OF_KIMI, _END_OF_KIMI = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS_OF_KIMI = "<|tool_call_argument_begin|>"
_ARGUMENTS_OF_MISTRAL = "[ARGS]"


@dataclass(frozen=True)
class ReasoningRules:
    """The rules of the reasoning before one answer. `opening` is the tag that begins it.

    It is empty where the prompt has opened the reasoning: then it comes first, and otherwise the model may leave it
    out. `closing` are the rules of `thoughts`: everything up to the end of the tag that closes it.
    """

    opening: str
    closing: tuple[str, ...]

    def before(self, answer: str) -> list[str]:
        """Return the rules of a `start` that goes on with `answer`, whose first words are not free text."""
        thinking = f"thinking: SPACE? {self.opening} thoughts SPACE?" if self.opening else "thinking: thoughts SPACE?"
        start = f"start: {'thinking?' if self.opening else 'thinking'} ({answer})"
        return [start, thinking, r"SPACE: /[ \t\r\n]{1,8}/", *self.closing]

    def before_text(self, answer: str) -> list[str]:
        """Return those for an answer that begins with free text, of which optional reasoning is a part."""
        return [f"start: {answer}"] if self.opening else [f"start: thoughts ({answer})", *self.closing]


def reasoning_rules(reasoning: ReasoningFormat, state: str, tokenizer: Tokenizer) -> ReasoningRules | None:
    """Return the rules of reasoning that begins in `state`; None for none, and for formats with more than two tags."""
    opens = [edge.marker for edge in reasoning.transitions.get(BEGINNING, ()) if edge.state == REASONING]
    closes = reasoning.transitions.get(REASONING, ())
    if state not in (BEGINNING, REASONING) or not opens or [edge.state for edge in closes] != [CONTENT]:
        return None
    specials = {controlled([(tokenizer.token_bytes(i), True)]): i for i in tokenizer.special_ids}
    try:
        opening, closing = (
            f"<[{specials[tag]}]>" if tag in specials else _literal(tag.decode())
            for tag in (opens[0], closes[0].marker)
        )
    except UnicodeDecodeError:  # It has a special token and more.
        return None
    end = specials.get(closes[0].marker)
    others = tokenizer.special_ids - tokenizer.eos_ids - {end}
    between = f"(THOUGHT? {_token_ranges(others)})* " if others else ""
    if end is None:
        rules = [f"thoughts: {between}closed", f"closed[lazy]: /(?s:.*)/ {closing}"]
    else:
        rules = [f"thoughts: {between}THOUGHT? {closing}"]
    return ReasoningRules(opening if state == BEGINNING else "", (*rules, "THOUGHT: /(?s:.+)/"))


def schema_grammar(schema: str, reasoning: ReasoningRules) -> str:
    """Return the grammar of JSON that fits a schema, behind reasoning."""
    return "\n".join([_HEAD, *reasoning.before("json"), f"json: {_json(schema)}", ""])


def answer_grammar(
    answer: HeldAnswer, syntax: CallSyntax, tokenizer: Tokenizer, reasoning: ReasoningRules | None = None
) -> str:
    """Return the grammar of an answer that may call tools, behind reasoning. `syntax` has a form."""
    start = syntax.start.decode()
    # Where a call goes to the end of the turn, and where one marker is for all calls, nothing follows them.
    last = answer.single or syntax.form is not Form.OBJECT
    calls = "mark call" if last else "mark call (WS? mark call)*"
    rules = [f"mark: {_marker(start, tokenizer)}", f"WS: /{_WHITESPACE}/", *_call(answer, syntax, tokenizer)]
    if answer.required or answer.json_schema is not None:
        whole = calls if answer.required or answer.json_schema is None else f"{calls} | {_json(answer.json_schema)}"
        begin = reasoning.before(whole) if reasoning else [f"start: {whole}"]
    else:
        whole = "free TEXT? | free begun call" if last else "(free begun call)* free TEXT?"
        begin = reasoning.before_text(whole) if reasoning else [f"start: {whole}"]
        # However the marker is spelled, it begins a call: a lazy lexeme ends where its text has the marker.
        rules += [
            f"free: {_other_specials(start, tokenizer)}",
            "begun: TEXT? mark | spelled",
            f"spelled[lazy]: /(?s:.*)/ {_literal(start)}",
            "TEXT: /(?s:.+)/",
        ]
    return "\n".join([_HEAD, *begin, *rules, ""])


def _call(answer: HeldAnswer, syntax: CallSyntax, tokenizer: Tokenizer) -> list[str]:
    """Return the rules of `call`: what follows the start marker, up to the end of the call or of all calls."""

    def marker(text: str) -> str:
        return _marker(text, tokenizer)

    def several(one: str, another: str) -> str:
        return one if answer.single else f"{one} ({another})*"

    numbered = list(enumerate(answer.tools))
    match syntax.form:
        case Form.NAMED:
            call = several("named", "mark named")
            tools = [f"{_literal(tool.name)} {marker(_ARGUMENTS_OF_MISTRAL)} WS? json_{i}" for i, tool in numbered]
            one = "named: WS? tool"
        case Form.KIMI:
            call = f"{several('numbered', 'numbered')} WS? {marker(syntax.end.decode())}"
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
                objects = several("object", 'WS? "," WS? object')
                call = f'WS? "[" WS? {objects} WS? "]"'
            else:
                call = f"WS? object WS? {marker(syntax.end.decode())}"
    schemas = [f"json_{i}: {_json(tool.arguments)}" for i, tool in numbered]
    return [f"call: {call}", one, f"tool: {' | '.join(tools)}", *schemas]


def _json(schema: str) -> str:
    """Return a JSON Schema as a symbol, with how it is to be compiled."""
    return f"%json {json.dumps({**json.loads(schema), 'x-guidance': JSON_OPTIONS}, ensure_ascii=False)}"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _marker(text: str, tokenizer: Tokenizer) -> str:
    """Return a marker as templates write it: where a special token is spelled so, that token."""
    return f"<[{tokenizer.special_id(text)}]>" if tokenizer.is_special(text.encode()) else _literal(text)


def _other_specials(start: str, tokenizer: Tokenizer) -> str:
    """Return text that goes up to special tokens that neither begin a call nor end the turn."""
    barred = {*tokenizer.eos_ids, *([tokenizer.special_id(start)] if tokenizer.is_special(start.encode()) else [])}
    others = tokenizer.special_ids - barred
    return f"(TEXT? {_token_ranges(others)})*" if others else '""'


def _token_ranges(token_ids: Iterable[int]) -> str:
    """Return any one of these tokens, special ones too; there is one at least."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(token_ids):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return f"<[{','.join(f'{low}-{high}' if low < high else f'{low}' for low, high in ranges)}]>"
