"""What a request to /v1/messages may hold; everything else is refused by name, but for `gateway.api.fields`.

output_config.effort reaches the model's chat template, as does thinking, if the template can turn it on and off;
disabled also leaves it out of the answer. metadata.user_id only narrows the search for the conversation.

Strict tools, tool_choice any and tool, and disable_parallel_tool_use are held by a grammar, where the model writes
calls as JSON. A tool with defer_loading is no part of the prompt until a tool_reference or a tool_addition names it;
tools that another server would run, or whose definition only its models know, are left out.

The edits of context_management that leave out old calls and thoughts are never due here: what a memory has costs
nothing, and an edit in its middle would cost all after it. The answer says that none was applied.
"""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from agentmem.limits import MAX_STOPS
from gateway.api.content import Media, left_out
from gateway.api.thinking import Effort, Switch
from gateway.api.validation import Count, Forgiving, JsonObject, KeyPart, StopString, Text, ToolName, TopK, TopP, within


class TextBlock(Forgiving):
    """Text."""

    type: Literal["text"]
    text: Text


class _Source(BaseModel):
    """Where a document is: here, if it is text."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: str
    data: Text | None = None
    content: Text | list[TextBlock | Media] | None = None


class DocumentBlock(Forgiving):
    """A document. One of text is read, with its title and context."""

    type: Literal["document"]
    source: _Source
    title: Text | None = None
    context: Text | None = None

    @property
    def text(self) -> str:
        """The document as text, or words in its place."""
        source = self.source
        if source.type == "content":
            parts = source.content or ""
            said = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        else:
            said = (source.data or "") if source.type == "text" else left_out("document")
        return "\n".join(filter(None, (self.title, self.context, said)))


class SearchResultBlock(Forgiving):
    """Something that a search found."""

    type: Literal["search_result"]
    source: Text
    title: Text
    content: list[TextBlock]

    @property
    def text(self) -> str:
        """It as text."""
        return "\n".join((self.title, self.source, "".join(part.text for part in self.content)))


class ToolReferenceBlock(Forgiving):
    """Names a tool that the model may call from now on."""

    type: Literal["tool_reference"]
    tool_name: ToolName

    @property
    def text(self) -> str:
        """What the model reads of it."""
        return f"The tool {self.tool_name} can be called now.\n"


Said: TypeAlias = TextBlock | Media | DocumentBlock | SearchResultBlock


class ToolUseBlock(Forgiving):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: Text
    name: Text
    input: JsonObject | Text | None = None


class ToolResultBlock(Forgiving):
    """What a call gave. The model gets `is_error` in words."""

    type: Literal["tool_result"]
    tool_use_id: Text
    content: Text | list[Annotated[Said | ToolReferenceBlock, Field(discriminator="type")]] | None = None
    is_error: bool | None = None


class ThinkingBlock(Forgiving):
    """What the model thought before it said or called what follows."""

    type: Literal["thinking"]
    thinking: Text


class OtherBlock(BaseModel):
    """A block of what another server did or thought; models here do not get it."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: Annotated[
        str,
        Field(
            pattern="^(redacted_thinking|server_tool_use|compaction|fallback|advisor|mcp_tool_use|mcp_tool_result"
            "|(web_search|web_fetch|code_execution|bash_code_execution|text_editor_code_execution|tool_search)_tool_result)"
        ),
    ]


class Named(Forgiving):
    """A tool by its name."""

    type: Literal["tool_reference"]
    name: ToolName


class Defined(Forgiving):
    """A tool with its definition."""

    type: Literal["tool_definition"]
    definition: "Tool"


class ToolAdditionBlock(Forgiving):
    """A tool that the model may call from now on, by its name or with its definition."""

    type: Literal["tool_addition"]
    tool: Annotated[Named | Defined, Field(discriminator="type")]


class ToolRemovalBlock(Forgiving):
    """A tool that the model may not call any more."""

    type: Literal["tool_removal"]
    tool: Named


_BLOCKS = {
    "text": "text",
    "document": "document",
    "search_result": "search_result",
    "tool_use": "tool_use",
    "tool_result": "tool_result",
    "thinking": "thinking",
    "tool_addition": "tool_addition",
    "tool_removal": "tool_removal",
    **dict.fromkeys(Media.model_fields["type"].annotation.__args__, "media"),  # type: ignore[union-attr]
}


def _kind(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
    return _BLOCKS.get(kind, "other") if isinstance(kind, str) else None


Block: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[Media, Tag("media")]
    | Annotated[DocumentBlock, Tag("document")]
    | Annotated[SearchResultBlock, Tag("search_result")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[ToolAdditionBlock, Tag("tool_addition")]
    | Annotated[ToolRemovalBlock, Tag("tool_removal")]
    | Annotated[OtherBlock, Tag("other")],
    Discriminator(
        _kind,
        custom_error_type="block",
        custom_error_message="must be text, an image, a document, a tool_use, a tool_result or thinking",
    ),
]


class Message(Forgiving):
    """One message. One of the system's may be there for the turn of the user that it follows, and no later."""

    role: Literal["user", "assistant", "system"]
    content: Text | list[Block]
    clear_at: Literal["next_user_message", "never"] | None = None

    @property
    def blocks(self) -> list[Block]:
        """The content as blocks."""
        return [TextBlock(type="text", text=self.content)] if isinstance(self.content, str) else self.content


class Tool(Forgiving):
    """A tool of the caller's own."""

    type: Literal["custom"] | None = None
    name: ToolName
    description: Text | None = None
    input_schema: JsonObject
    strict: bool | None = None
    defer_loading: bool | None = None


class OtherTool(BaseModel):
    """A tool that another server would run, or whose definition only its models know; models here do not get it."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: Annotated[
        str,
        Field(
            pattern="^(web_search|web_fetch|code_execution|bash|text_editor|computer|memory|tool_search|mcp|advisor|agent)"
        ),
    ]


def _whose(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return "own" if kind in (None, "custom") else "other"


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
    name: ToolName
    disable_parallel_tool_use: bool | None = None


ToolChoice = Annotated[NoTool | AnyTool | OneTool, Field(discriminator="type")]


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


class Metadata(BaseModel):
    """What is said of the request. All but the user means nothing here."""

    model_config = ConfigDict(extra="ignore", strict=True)

    user_id: KeyPart | None = None


class Conversation(Forgiving):
    """What a request to be answered and one to be counted have in common: all that the prompt is made of."""

    model: KeyPart | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    system: Text | list[TextBlock] | None = None
    tools: (
        list[Annotated[Annotated[Tool, Tag("own")] | Annotated[OtherTool, Tag("other")], Discriminator(_whose)]] | None
    ) = None
    tool_choice: ToolChoice | None = None
    thinking: Switch | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    chat_template_kwargs: JsonObject | None = None


class CountTokensRequest(Conversation):
    """The body of a request to count."""


class MessagesRequest(Conversation):
    """The body of a request to answer."""

    max_tokens: Count
    stream: bool | None = None
    temperature: Annotated[float, within("temperature", high=1)] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    metadata: Metadata | None = None
