"""Strict tools, a tool_choice that names or requires functions, and parallel_tool_calls=false are held by a grammar.
Tools of a namespace are functions by both names, custom tools are functions of one text, and tools that another server
would run are left out, as are items that tell of them.
"""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema

from agentmem.validation import MAX_TOP_LOGPROBS
from gateway.api.content import Media, OrOther, Refusal
from gateway.api.openai import No, TextFormat
from gateway.api.openai_tools import ResponseTool, ResponseToolChoice
from gateway.api.thinking import Thinks
from gateway.api.validation import Forgiving, JsonObject, KeyPart, Limit, Many, TopP, within

MAX_METADATA = 16

_NonEmpty = Annotated[str, Field(min_length=1)]


class ItemText(Forgiving):
    type: Literal["input_text", "output_text", "text"]
    text: str


Content: TypeAlias = str | Many[Annotated[ItemText | Refusal | Media, Field(discriminator="type")]]


class MessageItem(Forgiving):
    type: Annotated[Literal["message"], WithJsonSchema({"enum": ["message", None]})] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class FunctionCallItem(Forgiving):
    """`arguments` is JSON text."""

    type: Literal["function_call"]
    call_id: _NonEmpty
    name: _NonEmpty
    namespace: str | None = None
    arguments: str | JsonObject | None = None


class CustomCallItem(Forgiving):
    type: Literal["custom_tool_call"]
    call_id: _NonEmpty
    name: _NonEmpty
    namespace: str | None = None
    input: str


class CallOutputItem(Forgiving):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: _NonEmpty
    output: Content
    name: str | None = None
    namespace: str | None = None


class ReasoningText(Forgiving):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Forgiving):
    """A summary, of another server's model, is not read."""

    type: Literal["reasoning"]
    summary: Many[ReasoningText] | None = None
    content: Many[ReasoningText] | None = None


class ItemReference(Forgiving):
    """By the id of an item of a response of this server."""

    type: Literal["item_reference"] = "item_reference"
    id: _NonEmpty


def _typed(item: Any) -> Any:
    """An item may leave its type out."""
    if isinstance(item, dict) and item.get("type") is None:
        return {**item, "type": "item_reference" if item.keys() == {"id"} else "message"}
    return item


Item: TypeAlias = Annotated[
    OrOther[
        Annotated[
            MessageItem | FunctionCallItem | CustomCallItem | CallOutputItem | ReasoningItem | ItemReference,
            Field(discriminator="type"),
        ]
    ],
    BeforeValidator(_typed),
]


class TextConfig(Forgiving):
    format: TextFormat | None = None


class ResponseRequest(Thinks):
    model: KeyPart | None = None
    input: str | Many[Item]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: JsonObject | None = None
    max_output_tokens: Limit | None = None
    temperature: Annotated[float, within("temperature")] | None = None
    top_p: TopP | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    metadata: Annotated[JsonObject, Field(max_length=MAX_METADATA)] | None = None
    prompt_cache_key: KeyPart | None = None
    text: TextConfig | None = None
    tools: Many[ResponseTool] | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include: Many[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    user: Annotated[str, Field(description="no effect; is in the answer")] | None = None
    safety_identifier: Annotated[str, Field(description="no effect; is in the answer")] | None = None
    background: No | None = None

    @property
    def wants_logprobs(self) -> bool:
        return "message.output_text.logprobs" in (self.include or ())
