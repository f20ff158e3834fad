"""Requests to /v1/messages.

Strict tools, tool_choice any and tool, and disable_parallel_tool_use are held by a grammar. A tool with defer_loading
is no part of the prompt until a tool_reference names it. metadata.user_id only narrows the search for the conversation.
The edits of context_management are never due: a memory costs nothing, and an edit in its middle would cost all after
it.
"""

from typing import Annotated, Literal

from pydantic import Field

from agentmem.limits import MAX_STOPS
from gateway.api.content import OrOther
from gateway.api.messages_blocks import Block, TextBlock, Tool
from gateway.api.thinking import Effort, Switch
from gateway.api.validation import (
    Advised,
    Body,
    Count,
    Forgiving,
    JsonObject,
    KeyPart,
    Many,
    StopString,
    ToolName,
    TopK,
    TopP,
    within,
)


class Message(Advised):
    role: Literal["user", "assistant", "system"]
    content: str | Many[Block]

    @property
    def blocks(self) -> list[Block]:
        return [TextBlock(type="text", text=self.content)] if isinstance(self.content, str) else self.content


class NoTool(Forgiving):
    type: Literal["none"]


class AnyTool(Forgiving):
    """auto, or has to call (any)."""

    type: Literal["auto", "any"]
    disable_parallel_tool_use: bool | None = None


class OneTool(Forgiving):
    type: Literal["tool"]
    name: ToolName
    disable_parallel_tool_use: bool | None = None


ToolChoice = Annotated[NoTool | AnyTool | OneTool, Field(discriminator="type")]


class Format(Forgiving):
    type: Literal["json_schema"]
    json_schema: Annotated[JsonObject, Field(alias="schema")]


class OutputConfig(Forgiving):
    format: Format | None = None
    effort: Effort | None = None


class Metadata(Forgiving):
    user_id: KeyPart | None = None


class Conversation(Body):
    """All that the prompt is made of."""

    model: KeyPart | None = None
    messages: Annotated[Many[Message], Field(min_length=1)]
    system: str | Many[TextBlock] | None = None
    tools: Many[OrOther[Tool]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Switch | None = None
    output_config: OutputConfig | None = None
    context_management: JsonObject | None = None
    chat_template_kwargs: JsonObject | None = None


class CountTokensRequest(Conversation):
    """The body of a request to count."""


class MessagesRequest(Conversation):
    max_tokens: Count
    stream: bool | None = None
    temperature: Annotated[float, within("temperature", high=1)] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    stop_sequences: Annotated[Many[StopString], Field(max_length=MAX_STOPS)] | None = None
    metadata: Metadata | None = None
