"""Every field that the SDKs can send is in a schema, accepted without effect, or refused with advice."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from anthropic.types import beta as claude
from anthropic.types.beta import message_create_params as messages
from openai.types import chat, completion_create_params, responses
from openai.types.chat import completion_create_params as completions
from openai.types.responses import response_create_params
from pydantic import BaseModel

from gateway.api import chat as own_chat
from gateway.api import messages_blocks, messages_schema, openai_tools, responses_schema, thinking
from gateway.api.completions import CompletionRequest
from gateway.api.fields import IDLE, REFUSED


def test_lists_say_each_field_once() -> None:
    assert not IDLE.keys() & REFUSED.keys()


SENT: list[tuple[Any, type[BaseModel]]] = [
    (completions.CompletionCreateParamsBase, own_chat.ChatRequest),
    (completion_create_params.CompletionCreateParamsBase, CompletionRequest),
    (response_create_params.ResponseCreateParamsBase, responses_schema.ResponseRequest),
    (messages.MessageCreateParamsBase, messages_schema.MessagesRequest),
    (chat.ChatCompletionAssistantMessageParam, own_chat.Message),
    (chat.ChatCompletionToolMessageParam, own_chat.Message),
    (chat.ChatCompletionUserMessageParam, own_chat.Message),
    (chat.ChatCompletionSystemMessageParam, own_chat.Message),
    (chat.ChatCompletionMessageFunctionToolCallParam, own_chat.ToolCall),
    (chat.ChatCompletionFunctionToolParam, own_chat.Tool),
    (responses.ResponseFunctionToolCallParam, responses_schema.FunctionCallItem),
    (responses.ResponseCustomToolCallParam, responses_schema.CustomCallItem),
    (responses.ResponseOutputMessageParam, responses_schema.MessageItem),
    (responses.ResponseReasoningItemParam, responses_schema.ReasoningItem),
    (responses.ResponseInputTextParam, responses_schema.ItemText),
    (responses.FunctionToolParam, openai_tools.Function),
    (responses.CustomToolParam, openai_tools.CustomTool),
    (responses.NamespaceToolParam, openai_tools.NamespaceTool),
    (responses.ResponseTextConfigParam, responses_schema.TextConfig),
    *((each, messages_schema.Message) for each in get_args(claude.BetaMessageParam)),
    (claude.BetaSystemMessageParam, messages_schema.Message),
    (claude.BetaTextBlockParam, messages_blocks.TextBlock),
    (claude.BetaToolUseBlockParam, messages_blocks.ToolUseBlock),
    (claude.BetaToolResultBlockParam, messages_blocks.ToolResultBlock),
    (claude.BetaThinkingBlockParam, messages_blocks.ThinkingBlock),
    (claude.BetaRequestDocumentBlockParam, messages_blocks.DocumentBlock),
    (claude.BetaSearchResultBlockParam, messages_blocks.SearchResultBlock),
    (claude.BetaToolReferenceBlockParam, messages_blocks.ToolReferenceBlock),
    (claude.BetaToolParam, messages_blocks.Tool),
    (claude.BetaOutputConfigParam, messages_schema.OutputConfig),
    (claude.BetaThinkingConfigAdaptiveParam, thinking.Switch),
    (claude.BetaThinkingConfigEnabledParam, thinking.Switch),
]


@pytest.mark.parametrize(("sent", "schema"), SENT, ids=lambda each: each.__name__)
def test_every_field_of_the_sdks_is_honoured_accepted_or_refused_with_advice(
    sent: Any, schema: type[BaseModel]
) -> None:
    known = {field.alias or name for name, field in schema.model_fields.items()} | IDLE.keys() | REFUSED.keys()
    unknown = set(sent.__annotations__) - known
    assert not unknown
