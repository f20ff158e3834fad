"""The conversation becomes the same that OpenAI's dialect would make of it. What tools gave are messages of their own,
before what the user says with them. Consecutive messages of one role are one turn, their texts a blank line apart.

Claude Code begins the system prompt with a line for Anthropic's accounting, whose checksum changes with each request;
with it no conversation would go on from its memory.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from agentmem.errors import InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api import messages_blocks as blocks
from gateway.api import messages_schema as schema
from gateway.api.complaints import shown_name
from gateway.api.content import Media, Other, counted, others
from gateway.api.exchange import (
    Exchange,
    Incoming,
    call_arguments,
    function_call,
    held_calls,
    joined,
    to_json_text,
    tool_of,
    turn_of,
)
from gateway.api.messages_output import MessageAnswer
from gateway.api.messages_schema import CountTokensRequest, MessagesRequest
from gateway.api.thinking import template_arguments
from gateway.api.validation import Json

_BETWEEN_MESSAGES: Final = "\n\n"
_WORDS: Final = (blocks.TextBlock, Media, blocks.DocumentBlock, blocks.SearchResultBlock)
"""Blocks that have a text."""
_SAYS: Final[Mapping[str, tuple[type[blocks.Block], ...]]] = {
    "user": (*_WORDS, blocks.ToolResultBlock, Other),
    "assistant": (blocks.TextBlock, blocks.ToolUseBlock, blocks.ThinkingBlock, Other),
    "system": (blocks.TextBlock,),
}
_ACCOUNTING: Final = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")


def messages_exchange(asked: MessagesRequest, incoming: Incoming) -> Exchange:
    """Raises InvalidArgument for messages that do not belong where they stand."""
    output = asked.output_config.format if asked.output_config else None
    turn = turn_of(
        incoming,
        asked,
        messages=chat_messages(asked),
        stop=asked.stop_sequences or (),
        max_tokens=asked.max_tokens,
        json_schema=json.dumps(output.json_schema, ensure_ascii=False) if output else None,
        tool_choice=_chosen(asked),
    )
    thinks = asked.thinking is None or asked.thinking.thinks
    managed = asked.context_management is not None
    answer = MessageAnswer(f"msg_{incoming.unique}", asked.model or "", thinking=thinks, managed=managed)
    label = asked.metadata.user_id if asked.metadata else None
    said = [block for message in asked.messages if message.role == "user" for block in message.blocks]
    return Exchange(
        (turn,),
        answer,
        bool(asked.stream),
        label=label or "",
        left_out=counted([said]),
        others=[*others(asked.tools or (), *(message.blocks for message in asked.messages)), *asked.unread],
    )


def _chosen(asked: MessagesRequest) -> inference_pb2.ToolChoice | None:
    choice, tools = asked.tool_choice, offered(asked)
    if isinstance(choice, schema.NoTool):
        return None
    names = [choice.name] if isinstance(choice, schema.OneTool) else []
    return held_calls(
        tools,
        required=choice is not None and choice.type != "auto",
        names=names,
        single=bool(names) or bool(choice and choice.disable_parallel_tool_use),
    )


def to_count(asked: CountTokensRequest, namespace: str) -> inference_pb2.CountTokensRequest:
    """Raises InvalidArgument as `messages_exchange` does."""
    key = types_pb2.AgentKey(namespace=namespace, model_id=asked.model or "")
    return inference_pb2.CountTokensRequest(key=key, messages=chat_messages(asked))


def token_count(asked: CountTokensRequest, tokens: int) -> Json:
    managed = {"context_management": {"original_input_tokens": tokens}} if asked.context_management else {}
    return {"input_tokens": tokens, **managed}


def chat_messages(conversation: schema.Conversation) -> types_pb2.Messages:
    """Raises InvalidArgument as `messages_exchange` does."""
    arguments = dict(conversation.chat_template_kwargs or {})
    if conversation.thinking is not None:
        arguments["enable_thinking"] = conversation.thinking.thinks
    effort = conversation.output_config.effort if conversation.output_config else None
    tools = [] if isinstance(conversation.tool_choice, schema.NoTool) else offered(conversation)
    chat = types_pb2.Messages(
        tools_json=to_json_text("tools", [tool_of(tool.name, tool.description, tool.input_schema) for tool in tools]),
        template_arguments_json=template_arguments(effort, arguments),
    )
    if system := _system(conversation.system):
        chat.messages.add(role="system", content=system)
    for role, turn in groupby(enumerate(conversation.messages), key=lambda one: one[1].role):
        chat.messages.extend(_turn(role, list(turn)))
    if conversation.messages[-1].role == "assistant":
        raise InvalidArgument(
            f"messages[{len(conversation.messages) - 1}].role",
            "the last message must not be the assistant's: an answer cannot be begun for the model",
        )
    return chat


def offered(conversation: schema.Conversation) -> list[blocks.Tool]:
    """Return the tools that are not deferred, and after them those that messages name.

    Raises InvalidArgument where two tools have one name.
    """
    known: dict[str, blocks.Tool] = {}
    for index, tool in enumerate(conversation.tools or ()):
        if isinstance(tool, blocks.Tool):
            if tool.name in known:
                raise InvalidArgument(f"tools[{index}].name", "is the name of an earlier tool, too")
            known[tool.name] = tool
    named = {name: None for name, tool in known.items() if not tool.defer_loading}
    for block in (each for message in conversation.messages for each in message.blocks):
        if isinstance(block, blocks.ToolResultBlock) and isinstance(block.content, list):
            references = (part.tool_name for part in block.content if isinstance(part, blocks.ToolReferenceBlock))
            named |= dict.fromkeys(name for name in references if name in known)
    return [known[name] for name in named]


def _system(given: str | list[blocks.TextBlock] | None) -> str:
    """Leave out the line for accounting."""
    texts = [given] if isinstance(given, str) else [block.text for block in given or ()]
    if texts:
        texts[0] = _ACCOUNTING.sub("", texts[0], count=1)
    return "".join(texts)


def _turn(role: str, turn: Sequence[tuple[int, schema.Message]]) -> Iterator[types_pb2.ChatMessage]:
    """Yield consecutive messages of one role, with their numbers, as one, after what tools gave."""
    _check_blocks(role, turn)
    said = [block for _, message in turn for block in message.blocks]
    results = [block for block in said if isinstance(block, blocks.ToolResultBlock)]
    for result in results:
        content = joined(result.content)
        content = f"Error: {content}" if result.is_error else content
        yield types_pb2.ChatMessage(role="tool", content=content, tool_call_id=result.tool_use_id)
    texts = [[block for block in message.blocks if isinstance(block, _WORDS)] for _, message in turn]
    if not any(texts) and (results or role == "system"):
        return
    calls = [
        function_call(block.id, block.name, call_arguments(block.input))
        for block in said
        if isinstance(block, blocks.ToolUseBlock)
    ]
    thought = "".join(block.thinking for block in said if isinstance(block, blocks.ThinkingBlock))
    yield types_pb2.ChatMessage(
        role=role,
        content=_BETWEEN_MESSAGES.join(map(joined, filter(None, texts))),
        reasoning_content=thought or None,
        tool_calls_json=to_json_text("messages", calls),
    )


def _check_blocks(role: str, turn: Sequence[tuple[int, schema.Message]]) -> None:
    spoke = False
    for index, message in turn:
        for place, block in enumerate(message.blocks):
            at = f"messages[{index}].content[{place}].type"
            if not isinstance(block, _SAYS[role]):
                raise InvalidArgument(at, f"the {role} has no {shown_name(block.type)}")
            if isinstance(block, blocks.ToolResultBlock) and spoke:
                raise InvalidArgument(at, "results of tools come before the text of their turn")
            spoke = spoke or isinstance(block, _WORDS)
