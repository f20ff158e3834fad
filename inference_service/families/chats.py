"""How families write reasoning and calls, where mlx-lm's tables do not say it."""

import re
from typing import Final, NamedTuple

TAGS: Final = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("◁think▷", "◁/think▷"),
    ("<thought>", "</thought>"),
)
"""Reasoning of models that mlx-lm has no table for (Magistral, Seed-OSS, Command A, Apertus, Kimi, EXAONE), or whose
vocabulary has no such token (Granite, Nemotron): their templates have both tags."""

HARMONY_TOKENS: Final = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
_NEXT: Final = tuple((end, "header") for end in ("<|end|>", "<|call|>", "<|return|>", "<|start|>"))
HARMONY: Final = {
    "header": (("<|channel|>analysis", "analysis"), ("<|message|>", "normal")),
    "analysis": (("<|message|>", "reasoning"),),
    "reasoning": _NEXT,
    "normal": _NEXT,
}
"""gpt-oss, as mlx-lm's tables of states: a message is header, `<|message|>`, text, `<|end|>`. Its `analysis` channel is
reasoning; `final` and `commentary` are not. A prompt ends inside the header of the first, or as HARMONY_OPENINGS."""
HARMONY_OPENINGS: Final = (("<|channel|>analysis<|message|>", "reasoning"), ("<|message|>", "normal"))

CROWDED: Final = re.compile(r"\bmessage\.thinking\b")
"""In templates that refuse a message with reasoning, text and calls (gpt-oss, which can write one)."""


class CallForm(NamedTuple):
    """How calls are spelled whose arguments are JSON, which a grammar can hold them to.

    In `call`, NAME, NUMBER and ARGUMENTS stand for these, and a space for white space that may be there. START and END
    are the model's markers; the first START precedes all of it. `apart`: each call has its own, with text between them.
    """

    call: str
    before: str = ""
    between: str = ""
    after: str = ""
    apart: bool = False


OBJECT: Final = CallForm(' { "name" : "NAME" , "arguments" : ARGUMENTS } ', after=" END", apart=True)
_ARRAY: Final = OBJECT._replace(before=" [", between=" ,", after=" ]", apart=False)
_NAMED: Final = CallForm(" NAME[ARGS] ARGUMENTS", between="START")
_KIMI: Final = CallForm(
    " <|tool_call_begin|>functions.NAME:NUMBER<|tool_call_argument_begin|> ARGUMENTS <|tool_call_end|>", after=" END"
)
_CALLS: Final[dict[str, tuple[tuple[str, CallForm | None], ...]]] = {
    "json_tools": (("", OBJECT),),
    "kimi_k2": (("", _KIMI),),
    "mistral": (("[CALL_ID]", None), ("[ARGS]", _NAMED), ("", _ARRAY)),  # Its parser reads no [CALL_ID].
}
"""By mlx-lm's parser: the form of the first row whose text is in the model's template."""

HELD_PARSERS: Final = tuple(_CALLS)
SHORT_IDS: Final = frozenset({"mistral"})
"""Parsers of models whose templates refuse ids of calls that are not nine letters and digits."""
CALL_ID: Final = "stub00000"
"""Of a stub, in a form that all templates take."""


def call_form(parser: str, template: str) -> CallForm | None:
    """Return the form of the calls that mlx-lm's `parser` reads, of a model with this chat template."""
    return next((form for text, form in _CALLS.get(parser, ()) if text in template), None)
