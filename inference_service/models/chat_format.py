"""How a model's chats are written: its template, its reasoning and its calls of tools.

They come from mlx-lm's tables, and from formats that these lack.
"""

import re
from typing import Any, Final

from mlx_lm.tokenizer_utils import TokenizerWrapper

from inference_service.text.reasoning import ReasoningFormat, channelled, harmony, tagged
from inference_service.text.template import ChatTemplate
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.tool_calls import CallSyntax, form_of

_THINKING: Final = re.compile(r"\bmessage\.thinking\b")
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
    """The model's template; None where it has none.

    transformers gives templates earlier reasoning under the name that they have for it. gpt-oss's refuses a message
    that has reasoning, a text and calls, which its model can write: there the reasoning is left out.
    """
    if not wrapper.has_chat_template:
        return None
    apply: ChatTemplate = wrapper.apply_chat_template
    if _THINKING.search(_source(wrapper)) is None:
        return apply

    def with_reasoning_where_it_can_be(messages: list[dict[str, Any]], **arguments: Any) -> str:
        crowded = (bool(message.get("content") and message.get("tool_calls")) for message in messages)
        return apply(
            [_without_reasoning(m) if full else m for m, full in zip(messages, crowded, strict=True)], **arguments
        )

    return with_reasoning_where_it_can_be


def call_syntax(wrapper: TokenizerWrapper) -> CallSyntax | None:
    """How the model writes calls of tools, by its settings, template or vocabulary; None where mlx-lm has no parser."""
    if not wrapper.has_tool_calling or not wrapper.tool_call_start:
        return None
    name = wrapper.init_kwargs["tool_parser_type"]
    start, end = wrapper.tool_call_start.encode(), (wrapper.tool_call_end or "").encode()
    return CallSyntax(name, start, end, wrapper.tool_parser, form_of(name, _source(wrapper)))


def _without_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "reasoning_content"}


def _source(wrapper: TokenizerWrapper) -> str:
    template: Any = wrapper.chat_template
    return template if isinstance(template, str) else ""
