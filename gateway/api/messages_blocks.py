"""Blocks of messages, and a tool of the caller's own."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from gateway.api.content import Media, OrOther, left_out
from gateway.api.validation import Forgiving, JsonObject, Many, ToolName


class Tool(Forgiving):
    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: JsonObject
    strict: bool | None = None
    defer_loading: bool | None = None


class TextBlock(Forgiving):
    type: Literal["text"]
    text: str


class _Source(Forgiving):
    """`data` and `content` are there if it is text."""

    type: str
    data: str | None = None
    content: str | Many[TextBlock | Media] | None = None


class DocumentBlock(Forgiving):
    """One of text is read, with its title and context."""

    type: Literal["document"]
    source: _Source
    title: str | None = None
    context: str | None = None

    @property
    def text(self) -> str:
        source = self.source
        if source.type == "content":
            parts = source.content or ""
            said = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        else:
            said = (source.data or "") if source.type == "text" else left_out("document")
        return "\n".join(filter(None, (self.title, self.context, said)))


class SearchResultBlock(Forgiving):
    type: Literal["search_result"]
    source: str
    title: str
    content: Many[TextBlock]

    @property
    def text(self) -> str:
        return "\n".join((self.title, self.source, "".join(part.text for part in self.content)))


class ToolReferenceBlock(Forgiving):
    """The model may call this tool from now on."""

    type: Literal["tool_reference"]
    tool_name: ToolName

    @property
    def text(self) -> str:
        return f"The tool {self.tool_name} can be called now.\n"


Said: TypeAlias = TextBlock | Media | DocumentBlock | SearchResultBlock


class ToolUseBlock(Forgiving):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject | str | None = None


class ToolResultBlock(Forgiving):
    """The model gets `is_error` in words."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Many[Annotated[Said | ToolReferenceBlock, Field(discriminator="type")]] | None = None
    is_error: bool | None = None


class ThinkingBlock(Forgiving):
    type: Literal["thinking"]
    thinking: str


Block: TypeAlias = OrOther[
    Annotated[Said | ToolUseBlock | ToolResultBlock | ThinkingBlock, Field(discriminator="type")]
]
