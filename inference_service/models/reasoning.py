"""How a model sets its reasoning apart: mlx-lm's tables, and the formats that they lack."""

import re
from collections.abc import Mapping
from typing import Any, Final

from mlx_lm.tokenizer_utils import TokenizerWrapper

from inference_service.text.reasoning import ReasoningFormat, channelled, harmony, tagged
from inference_service.text.rendering import ChatTemplate
from inference_service.text.tokenizer import Tokenizer

_KEY: Final = "reasoning_content"
_OTHER_KEYS: Final = re.compile(r"""message(?:\.|\[['"])(thinking|reasoning)\b""")
_HARMONY: Final = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
_TAGS: Final = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("◁think▷", "◁/think▷"),
    ("<thought>", "</thought>"),
)
"""Of models that mlx-lm has no table for (Magistral, Seed-OSS, Command A, Apertus, Kimi, EXAONE), or whose vocabulary
has no such token (Granite, Nemotron): their templates have both tags."""


def reasoning_format(wrapper: TokenizerWrapper, tokenizer: Tokenizer) -> ReasoningFormat | None:
    """The format of a model, by its settings, its vocabulary or its template; None where nothing is known of one."""
    vocabulary = wrapper.get_vocab()
    if wrapper.response_transitions:
        return channelled(wrapper.response_transitions, wrapper.response_initial_state or "normal", tokenizer)
    if all(marker in vocabulary for marker in _HARMONY):
        return harmony(tokenizer)
    if wrapper.has_thinking:
        return tagged(wrapper.think_start, wrapper.think_end, tokenizer, wrapper.structural_markers)
    template = _source(wrapper)
    for start, end in _TAGS:
        if (start in vocabulary and end in vocabulary) or (start in template and end in template):
            return tagged(start, end, tokenizer)
    return None


def chat_template(wrapper: TokenizerWrapper) -> ChatTemplate | None:
    """The model's template, given earlier reasoning by the name that it has there; None where there is no template."""
    if not wrapper.has_chat_template:
        return None
    apply: ChatTemplate = wrapper.apply_chat_template
    source = _source(wrapper)
    other = _OTHER_KEYS.search(source)
    if _KEY in source or other is None:
        return apply
    key = other[1]

    def renamed(messages: list[dict[str, Any]], **arguments: Any) -> str:
        return apply([_renamed(message, key) for message in messages], **arguments)

    return renamed


def _renamed(message: Mapping[str, Any], key: str) -> dict[str, Any]:
    others = {name: value for name, value in message.items() if name != _KEY}
    # gpt-oss's template refuses a message that has calls, a text and reasoning.
    if _KEY not in message or (key == "thinking" and message.get("tool_calls") and message.get("content")):
        return others
    return {**others, key: message[_KEY]}


def _source(wrapper: TokenizerWrapper) -> str:
    template: Any = wrapper.chat_template
    return template if isinstance(template, str) else ""
