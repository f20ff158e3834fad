"""Grammars of answers in llguidance's Lark. Pure."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from inference_service.domain import HeldAnswer
from inference_service.families.chats import CallForm
from inference_service.text.reasoning import BEGINNING, CONTENT, REASONING, ReasoningFormat, controlled
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.tool_calls import CallSyntax

MAX_INDENT = 32

_WHITESPACE = rf"[ \t]|\r?\n[ \t]{{0,{MAX_INDENT}}}"
"""Confused models would write white space for ever."""

JSON_OPTIONS: dict[str, Any] = {
    "whitespace_pattern": _WHITESPACE,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
}

_HEAD = "%llguidance {}"
_PARTS = re.compile(r'("NAME"|NAME|NUMBER|ARGUMENTS|START|END|<\|\w+\|>| )')


@dataclass(frozen=True)
class ReasoningRules:
    """Rules of reasoning. `opening` is "" after a prompt that has the tag; `closing` are rules of `thoughts`."""

    opening: str
    closing: tuple[str, ...]

    def before(self, answer: str) -> list[str]:
        """For an `answer` that does not begin with free text."""
        thinking = f"thinking: SPACE? {self.opening} thoughts SPACE?" if self.opening else "thinking: thoughts SPACE?"
        start = f"start: {'thinking?' if self.opening else 'thinking'} ({answer})"
        return [start, thinking, r"SPACE: /[ \t\r\n]{1,8}/", *self.closing]

    def before_text(self, answer: str) -> list[str]:
        """For free text, which includes optional reasoning."""
        return [f"start: {answer}"] if self.opening else [f"start: thoughts ({answer})", *self.closing]


def reasoning_rules(reasoning: ReasoningFormat, state: str, tokenizer: Tokenizer) -> ReasoningRules | None:
    """None without reasoning, and for more than two tags."""
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
    except UnicodeDecodeError:  # a special token and more
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
    return "\n".join([_HEAD, *reasoning.before("json"), f"json: {_json(schema)}", ""])


def answer_grammar(
    answer: HeldAnswer, syntax: CallSyntax, tokenizer: Tokenizer, reasoning: ReasoningRules | None = None
) -> str:
    """`syntax` has a form."""
    start, form = syntax.start.decode(), syntax.form
    assert form is not None
    last = answer.single or not form.apart  # the calls of one marker, or of the turn, are followed by nothing
    calls = "mark call" if last else "mark call (WS? mark call)*"
    rules = [f"mark: {_marker(start, tokenizer)}", f"WS: /{_WHITESPACE}/", *_call(form, answer, syntax, tokenizer)]
    if answer.required or answer.json_schema is not None:
        whole = calls if answer.required or answer.json_schema is None else f"{calls} | {_json(answer.json_schema)}"
        begin = reasoning.before(whole) if reasoning else [f"start: {whole}"]
    else:
        whole = "free TEXT? | free begun call" if last else "(free begun call)* free TEXT?"
        begin = reasoning.before_text(whole) if reasoning else [f"start: {whole}"]
        # A lazy lexeme ends at a marker's text, however it is spelled.
        rules += [
            f"free: {_other_specials(start, tokenizer)}",
            "begun: TEXT? mark | spelled",
            f"spelled[lazy]: /(?s:.*)/ {_literal(start)}",
            "TEXT: /(?s:.+)/",
        ]
    return "\n".join([_HEAD, *begin, *rules, ""])


def _call(form: CallForm, answer: HeldAnswer, syntax: CallSyntax, tokenizer: Tokenizer) -> list[str]:
    words = {" ": "WS?", "NUMBER": "/[0-9]{1,4}/", "START": "mark", "END": _marker(syntax.end.decode(), tokenizer)}

    def symbols(text: str, number: int = 0, name: str = "") -> str:
        names = {"NAME": _literal(name), '"NAME"': _literal(json.dumps(name, ensure_ascii=False))}
        own = words | names | {"ARGUMENTS": f"json_{number}"}
        return " ".join(own.get(part) or _marker(part, tokenizer) for part in _PARTS.split(text) if part)

    several = "" if answer.single or form.apart else f"({symbols(form.between)} one)*"
    tools = [symbols(form.call, i, tool.name) for i, tool in enumerate(answer.tools)]
    return [
        f"call: {symbols(form.before)} one {several} {symbols(form.after)}",
        f"one: {' | '.join(tools)}",
        *(f"json_{i}: {_json(tool.arguments)}" for i, tool in enumerate(answer.tools)),
    ]


def _json(schema: str) -> str:
    return f"%json {json.dumps({**json.loads(schema), 'x-guidance': JSON_OPTIONS}, ensure_ascii=False)}"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _marker(text: str, tokenizer: Tokenizer) -> str:
    """Return a special token, or the text."""
    return f"<[{tokenizer.special_id(text)}]>" if tokenizer.is_special(text.encode()) else _literal(text)


def _other_specials(start: str, tokenizer: Tokenizer) -> str:
    """Match text up to special tokens that neither begin a call nor end the turn."""
    barred = {*tokenizer.eos_ids, *([tokenizer.special_id(start)] if tokenizer.is_special(start.encode()) else [])}
    others = tokenizer.special_ids - barred
    return f"(TEXT? {_token_ranges(others)})*" if others else '""'


def _token_ranges(token_ids: Iterable[int]) -> str:
    ranges: list[tuple[int, int]] = []
    for number in sorted(token_ids):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return f"<[{','.join(f'{low}-{high}' if low < high else f'{low}' for low, high in ranges)}]>"
