"""A conversation in Anthropic's shape as the contract's messages: the same that OpenAI's dialect would make of it.

The system prompt is the first message. What tools gave are messages of their own, before what the user says with them.
Consecutive messages of one role are one turn, their texts a blank line apart; the texts of one message's blocks follow
each other without anything between them. A result with is_error begins with "Error: ".
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from agentmem.errors import InvalidArgument
from agentmem.v1 import types_pb2
from gateway.anthropic.messages_schema import (
    Block,
    Conversation,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
    joined,
)
from gateway.exchange import Json
from gateway.template_arguments import template_arguments

_BETWEEN_MESSAGES: Final = "\n\n"
_SAYS: Final[Mapping[str, tuple[type[Block], ...]]] = {
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ToolUseBlock, ThinkingBlock, RedactedThinkingBlock),
    "system": (TextBlock,),
}


class _Said(NamedTuple):
    """One message's blocks; `at` is its path in the request."""

    at: str
    blocks: Sequence[Block]


def chat_messages(conversation: Conversation) -> types_pb2.Messages:
    """The whole chat and the tools that may be called. Raises InvalidArgument that names what does not belong there.

    With tool_choice "none" the model is told of no tools, as through OpenAI's doors: one that sees them may call them.
    """
    thinking = {"enable_thinking": conversation.thinking.type != "disabled"} if conversation.thinking else None
    barred = conversation.tool_choice is not None and conversation.tool_choice.type == "none"
    tools = () if barred else conversation.tools or ()
    chat = types_pb2.Messages(
        tools_json=_tools_json(tools) if tools else None,
        template_arguments_json=template_arguments(
            conversation.output_config.effort if conversation.output_config else None, thinking
        ),
    )
    if system := joined(conversation.system or ""):
        chat.messages.add(role="system", content=system)
    said = [(m.role, _Said(f"messages[{index}]", m.blocks)) for index, m in enumerate(conversation.messages)]
    for role, turn in groupby(said, key=lambda one: one[0]):
        messages = [message for _, message in turn]
        _check_blocks(role, messages)
        chat.messages.extend(_TURNS[role](messages))
    if conversation.messages[-1].role == "assistant":
        raise InvalidArgument(
            f"{said[-1][1].at}.role",
            "the last message must not be the assistant's: an answer cannot be begun for the model",
        )
    return chat


def _check_blocks(role: str, turn: Sequence[_Said]) -> None:
    for message in turn:
        for index, block in enumerate(message.blocks):
            if not isinstance(block, _SAYS[role]):
                raise InvalidArgument(f"{message.at}.content[{index}].type", f"the {role} has no {block.type}")


def _users(turn: Sequence[_Said]) -> Iterator[types_pb2.ChatMessage]:
    spoke = False
    for message in turn:
        for index, block in enumerate(message.blocks):
            if isinstance(block, ToolResultBlock) and spoke:
                raise InvalidArgument(
                    f"{message.at}.content[{index}].type", "results of tools come before the text of their turn"
                )
            spoke = spoke or isinstance(block, TextBlock)
    results = [block for message in turn for block in message.blocks if isinstance(block, ToolResultBlock)]
    for result in results:
        content = f"Error: {result.text}" if result.is_error else result.text
        yield types_pb2.ChatMessage(role="tool", content=content, tool_call_id=result.tool_use_id)
    if spoke or not results:
        yield types_pb2.ChatMessage(role="user", content=_text(turn))


def _assistants(turn: Sequence[_Said]) -> Iterator[types_pb2.ChatMessage]:
    blocks = [block for message in turn for block in message.blocks]
    calls = [_call(block) for block in blocks if isinstance(block, ToolUseBlock)]
    thought = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    yield types_pb2.ChatMessage(
        role="assistant",
        content=_text(turn),
        reasoning_content=thought or None,
        tool_calls_json=json.dumps(calls, ensure_ascii=False) if calls else None,
    )


def _systems(turn: Sequence[_Said]) -> Iterator[types_pb2.ChatMessage]:
    yield types_pb2.ChatMessage(role="system", content=_text(turn))


_TURNS: Final[Mapping[str, Callable[[Sequence[_Said]], Iterator[types_pb2.ChatMessage]]]] = {
    "user": _users,
    "assistant": _assistants,
    "system": _systems,
}


def _text(turn: Sequence[_Said]) -> str:
    texts = [[block for block in message.blocks if isinstance(block, TextBlock)] for message in turn]
    return _BETWEEN_MESSAGES.join(joined(blocks) for blocks in texts if blocks)


def _call(block: ToolUseBlock) -> Json:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _tools_json(tools: Sequence[Tool]) -> str:
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in names:
            raise InvalidArgument(f"tools[{index}].name", "is the name of an earlier tool, too")
        names.add(tool.name)
    return json.dumps([_function(tool) for tool in tools], ensure_ascii=False)


def _function(tool: Tool) -> Json:
    described = {} if tool.description is None else {"description": tool.description}
    return {"type": "function", "function": {"name": tool.name, **described, "parameters": tool.input_schema}}
