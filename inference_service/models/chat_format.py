"""A model's template, reasoning and tool calls, by mlx-lm's tables and `families.chats`."""

from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from inference_service.families import chats
from inference_service.text.reasoning import ReasoningFormat, by_states, tagged
from inference_service.text.template import ChatTemplate
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.tool_calls import CallSyntax


def reasoning_format(wrapper: TokenizerWrapper, tokenizer: Tokenizer) -> ReasoningFormat | None:
    vocabulary = wrapper.get_vocab()
    if wrapper.response_transitions:
        return by_states(wrapper.response_transitions, wrapper.response_initial_state or "normal", tokenizer)
    if all(marker in vocabulary for marker in chats.HARMONY_TOKENS):
        return by_states(chats.HARMONY, "header", tokenizer, chats.HARMONY_OPENINGS)
    if wrapper.has_thinking:
        return tagged(wrapper.think_start, wrapper.think_end, tokenizer, wrapper.structural_markers)
    template = _source(wrapper)
    for start, end in chats.TAGS:
        if (start in vocabulary and end in vocabulary) or (start in template and end in template):
            return tagged(start, end, tokenizer)
    return None


def chat_template(wrapper: TokenizerWrapper) -> ChatTemplate | None:
    """Return a template that gets reasoning under transformers' name, and none for crowded messages if it must."""
    if not wrapper.has_chat_template:
        return None
    apply: ChatTemplate = wrapper.apply_chat_template
    if chats.CROWDED.search(_source(wrapper)) is None:
        return apply

    def with_reasoning_where_it_can_be(messages: list[dict[str, Any]], **arguments: Any) -> str:
        crowded = (bool(message.get("content") and message.get("tool_calls")) for message in messages)
        return apply(
            [_without_reasoning(m) if full else m for m, full in zip(messages, crowded, strict=True)], **arguments
        )

    return with_reasoning_where_it_can_be


def call_syntax(wrapper: TokenizerWrapper) -> CallSyntax | None:
    if not wrapper.has_tool_calling or not wrapper.tool_call_start:
        return None
    name = wrapper.init_kwargs["tool_parser_type"]
    start, end = wrapper.tool_call_start.encode(), (wrapper.tool_call_end or "").encode()
    return CallSyntax(name, start, end, wrapper.tool_parser, chats.call_form(name, _source(wrapper)))


def _without_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "reasoning_content"}


def _source(wrapper: TokenizerWrapper) -> str:
    template: Any = wrapper.chat_template
    return template if isinstance(template, str) else ""
