"""How families write reasoning and calls."""

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
"""Reasoning tags missing in mlx-lm's table (Magistral, Seed-OSS, Command A, Apertus, Kimi, EXAONE), or of several
tokens (Granite, Nemotron).
"""

HARMONY_TOKENS: Final = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
_NEXT: Final = tuple((end, "header") for end in ("<|end|>", "<|call|>", "<|return|>", "<|start|>"))
HARMONY: Final = {
    "header": (("<|channel|>analysis", "analysis"), ("<|message|>", "normal")),
    "analysis": (("<|message|>", "reasoning"),),
    "reasoning": _NEXT,
    "normal": _NEXT,
}
"""gpt-oss: prompts end inside the first header, or as HARMONY_OPENINGS."""
HARMONY_OPENINGS: Final = (("<|channel|>analysis<|message|>", "reasoning"), ("<|message|>", "normal"))

CROWDED: Final = re.compile(r"\bmessage\.thinking\b")
"""In templates that refuse reasoning, text and calls in one message."""


class CallForm(NamedTuple):
    """JSON calls, for grammars: NAME, NUMBER, ARGUMENTS are placeholders, START and END markers, a space optional.
    `apart`: calls have their own markers.
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
    "mistral": (("[CALL_ID]", None), ("[ARGS]", _NAMED), ("", _ARRAY)),  # its parser reads no [CALL_ID]
}
"""By mlx-lm's parser: the first row whose text is in the template."""

HELD_PARSERS: Final = tuple(_CALLS)
SHORT_IDS: Final = frozenset({"mistral"})
CALL_ID: Final = "stub00000"


def call_form(parser: str, template: str) -> CallForm | None:
    return next((form for text, form in _CALLS.get(parser, ()) if text in template), None)
