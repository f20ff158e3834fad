"""What a request to /v1/responses may hold; everything else is refused by name. A null counts as not given.

metadata is echoed, prompt_cache_key only narrows the search for the conversation, and reasoning.effort reaches the
model's chat template. include=["reasoning.encrypted_content"] has no effect: reasoning is never encrypted.

Strict tools, a tool_choice that names or requires functions, and parallel_tool_calls=false are held by a grammar, where
the model writes calls as JSON. A tool is strict if it says so.
"""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from agentmem.validation import MAX_TOP_LOGPROBS
from gateway.api.exchange import Effort
from gateway.api.openai import (
    MAX_TOOLS,
    FunctionDefinition,
    No,
    ResponseToolChoice,
    Temperature,
    TextFormat,
    TopP,
    Verbosity,
)
from gateway.api.validation import Count, Forgiving, JsonObject, KeyPart, Strict, Text

MAX_METADATA = 16

_Status = Literal["in_progress", "completed", "incomplete"]
_Nothing = Annotated[list[Any], Field(max_length=0)]
_NonEmpty = Annotated[Text, Field(min_length=1)]


class InputText(Strict):
    """One part of what the model is given."""

    type: Literal["input_text"]
    text: Text


class OutputText(Forgiving):
    """One part of what the model said. Log-probabilities that come back with it have no effect."""

    ignored = frozenset({"parsed"})

    type: Literal["output_text"]
    text: Text
    annotations: _Nothing | None = None
    logprobs: list[Any] | None = None


_Part = Annotated[
    InputText | OutputText,
    Discriminator("type", custom_error_type="part", custom_error_message="must be an input_text or an output_text"),
]
_Content: TypeAlias = Text | list[_Part]


class MessageItem(Forgiving):
    """A message. Of one that a response brought the id and status have no effect."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: _Content
    id: Text | None = None
    status: _Status | None = None


class FunctionCallItem(Forgiving):
    """A call that the model made; `arguments` is JSON text."""

    ignored = frozenset({"parsed_arguments"})

    type: Literal["function_call"]
    call_id: _NonEmpty
    name: _NonEmpty
    arguments: Text
    id: Text | None = None
    status: _Status | None = None


class FunctionCallOutputItem(Forgiving):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: _NonEmpty
    output: _Content
    id: Text | None = None
    status: _Status | None = None


class ReasoningText(Strict):
    """One part of what the model thought."""

    type: Literal["reasoning_text"]
    text: Text


class SummaryText(Strict):
    """One part of a summary of what a model of another server thought, without effect."""

    type: Literal["summary_text"]
    text: Text


class ReasoningItem(Strict):
    """What the model thought before it said or called what follows. Its id and status have no effect."""

    type: Literal["reasoning"]
    id: Text | None = None
    summary: list[SummaryText] | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: None = None
    status: _Status | None = None


def _kind(item: Any) -> Any:
    return item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)


Item: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _kind,
        custom_error_type="item",
        custom_error_message="must be a message, reasoning, a function_call or a function_call_output",
    ),
]


class FunctionTool(FunctionDefinition):
    """A function that the model may call."""

    type: Literal["function"]


class TextConfig(Strict):
    """How the text is to be."""

    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class ReasoningConfig(Strict):
    """How much the model thinks. What its reasoning is summed up in changes nothing."""

    effort: Effort | None = None
    summary: Text | None = None
    generate_summary: Text | None = None


class ResponseStreamOptions(Strict):
    """Options of a stream."""

    include_obfuscation: No | None = None


class ResponseRequest(Forgiving):
    """The body of a request."""

    model: KeyPart
    input: Text | Annotated[list[Item], Field(min_length=1)]
    instructions: Text | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    previous_response_id: Text | None = None
    store: bool | None = None
    metadata: Annotated[dict[Text, Text], Field(max_length=MAX_METADATA)] | None = None
    prompt_cache_key: KeyPart | None = None
    text: TextConfig | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    chat_template_kwargs: JsonObject | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    # Without effect: they change nothing about an answer here, or say how it is anyway.
    user: Text | None = None
    safety_identifier: Text | None = None
    truncation: Literal["disabled"] | None = None
    background: No | None = None
    service_tier: Text | None = None
    prompt_cache_retention: Text | None = None
    prompt_cache_options: JsonObject | None = None
    max_tool_calls: Count | None = None

    @property
    def effort(self) -> Effort | None:
        """How much the model is to think."""
        return self.reasoning.effort if self.reasoning else None

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities are asked for."""
        return "message.output_text.logprobs" in (self.include or ())
