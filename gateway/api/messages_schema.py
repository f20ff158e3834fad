"""What a request to /v1/messages may hold; everything else is refused by name.

output_config.effort reaches the model's chat template, as does thinking, if the template can turn it on and off;
disabled also leaves it out of the answer. metadata.user_id only narrows the search for the conversation.

Strict tools, tool_choice any and tool, and disable_parallel_tool_use are held by a grammar, where the model writes
calls as JSON.

Accepted without effect: cache_control, wherever the API has it, because everything is kept anyhow; a thinking block's
signature; budget_tokens, which nothing holds the model to; thinking.display; redacted_thinking in the assistant's
messages, which another server's models wrote; a tool's eager_input_streaming; service_tier; diagnostics, for each
answer says why its memory did not match; and what asks for nothing: speed standard, a null or an empty list.

The edits of context_management that leave out old calls and thoughts are never due here: what a memory has costs
nothing, and an edit in its middle would cost all behind it. The answer says that none was applied.
"""

from typing import Annotated, Literal

from pydantic import Field

from agentmem.limits import MAX_STOPS
from gateway.api.exchange import Effort
from gateway.api.validation import Count, Forgiving, JsonObject, KeyPart, StopString, Text, within

MAX_TOOL_NAME = 128


class CacheControl(Forgiving):
    """Where a cache would end."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: Text | None = None


class _Cacheable(Forgiving):
    cache_control: CacheControl | None = None


class TextBlock(_Cacheable):
    """Text."""

    type: Literal["text"]
    text: Text


class Caller(Forgiving):
    """Who called a tool: the model itself."""

    type: Literal["direct"]


class ToolUseBlock(_Cacheable):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: Text
    name: Text
    input: JsonObject
    caller: Caller | None = None


class ToolResultBlock(_Cacheable):
    """What a call gave. The model gets `is_error` in words."""

    type: Literal["tool_result"]
    tool_use_id: Text
    content: Text | list[TextBlock] | None = None
    is_error: bool | None = None


class ThinkingBlock(Forgiving):
    """What the model thought before it said or called what follows."""

    type: Literal["thinking"]
    thinking: Text
    signature: Text | None = None


class RedactedThinkingBlock(Forgiving):
    """What a model of another server thought, encrypted."""

    type: Literal["redacted_thinking"]
    data: Text


Block = Annotated[
    TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock, Field(discriminator="type")
]


class Message(Forgiving):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: Text | list[Block]

    @property
    def blocks(self) -> list[Block]:
        """The content as blocks."""
        return [TextBlock(type="text", text=self.content)] if isinstance(self.content, str) else self.content


class Tool(_Cacheable):
    """A tool of the caller's own."""

    type: Literal["custom"] | None = None
    name: Annotated[Text, Field(min_length=1, max_length=MAX_TOOL_NAME)]
    description: Text | None = None
    input_schema: JsonObject
    strict: bool | None = None
    defer_loading: Literal[False] | None = None
    eager_input_streaming: bool | None = None
    allowed_callers: list[Literal["direct"]] | None = None


class NoTool(Forgiving):
    """The model calls no tool."""

    type: Literal["none"]


class AnyTool(Forgiving):
    """Whether the model calls tools is its own choice (auto), or it has to (any)."""

    type: Literal["auto", "any"]
    disable_parallel_tool_use: bool | None = None


class OneTool(Forgiving):
    """The model calls this tool."""

    type: Literal["tool"]
    name: Annotated[Text, Field(min_length=1, max_length=MAX_TOOL_NAME)]
    disable_parallel_tool_use: bool | None = None


ToolChoice = Annotated[NoTool | AnyTool | OneTool, Field(discriminator="type")]


class Thinking(Forgiving):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Count | None = None
    display: Literal["summarized", "omitted"] | None = None


class Format(Forgiving):
    """What the answer's text will be."""

    type: Literal["json_schema"]
    json_schema: Annotated[JsonObject, Field(alias="schema")]


class OutputConfig(Forgiving):
    """How the answer will be."""

    format: Format | None = None
    effort: Effort | None = None


class ClearThinking(Forgiving):
    """Thoughts of old turns may be left out."""

    type: Literal["clear_thinking_20251015"]
    keep: JsonObject | Literal["all"] | None = None


class ClearToolUses(Forgiving):
    """Old results of tools may be left out, once there are many."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: JsonObject | None = None
    keep: JsonObject | None = None
    clear_at_least: JsonObject | None = None
    clear_tool_inputs: bool | list[Text] | None = None
    exclude_tools: list[Text] | None = None


class ContextManagement(Forgiving):
    """What may be left out of the prompt."""

    edits: list[Annotated[ClearThinking | ClearToolUses, Field(discriminator="type")]] | None = None


class Diagnostics(Forgiving):
    """Which answer this one's cache is compared with."""

    previous_message_id: Text | None = None


class Metadata(Forgiving):
    """What is said of the request."""

    user_id: KeyPart | None = None


class Conversation(Forgiving):
    """What a request to be answered and one to be counted have in common: all that the prompt is made of."""

    model: KeyPart
    messages: Annotated[list[Message], Field(min_length=1)]
    system: Text | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    context_management: ContextManagement | None = None
    speed: Literal["standard"] | None = None
    chat_template_kwargs: JsonObject | None = None


class CountTokensRequest(Conversation):
    """The body of a request to count."""


class MessagesRequest(Conversation):
    """The body of a request to answer."""

    max_tokens: Count
    stream: bool | None = None
    temperature: Annotated[float, within("temperature", high=1)] | None = None
    top_p: Annotated[float, within("top_p")] | None = None
    top_k: Annotated[int, within("top_k")] | None = None
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    metadata: Metadata | None = None
    diagnostics: Diagnostics | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
