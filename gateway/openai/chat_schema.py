"""What a request to /v1/chat/completions may hold; everything else is refused by name.

Supported: model, messages, stream, stream_options.include_usage, max_tokens, max_completion_tokens, temperature, top_p,
stop, seed, n, logprobs, top_logprobs, logit_bias, presence_penalty, frequency_penalty, response_format,
prompt_cache_key (which only narrows the search for the conversation), tools of type function, tool_choice,
parallel_tool_calls, reasoning_effort; and beyond OpenAI's top_k, min_p, repetition_penalty, and chat_template_kwargs
(vLLM's: further arguments of the model's chat template, as reasoning_effort is one). A null counts as not given.

Accepted without effect, because they change nothing about an answer here: user, safety_identifier, metadata, store,
service_tier, prediction, prompt_cache_retention, stream_options.include_obfuscation=false; and what says how it is
anyway: verbosity="medium", modalities=["text"].

Strict tools, a tool_choice that names or requires functions, and parallel_tool_calls=false are held by a grammar, where
the model writes calls as JSON. With "none" the model is not told of the tools: one that sees them may call them.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from agentmem.limits import MAX_TOP_LOGPROBS
from gateway.fields import Count, JsonObject, Strict, Text
from gateway.openai.response_format import ResponseFormat
from gateway.openai.schema import (
    MAX_TOOLS,
    Label,
    Name,
    SampledRequest,
    Verbosity,
    without,
    without_nulls,
)
from gateway.openai.tool_choice import ChatToolChoice
from gateway.template_arguments import Effort

_UNSUPPORTED = frozenset(
    {
        "audio",
        "function_call",
        "functions",
        "moderation",
        "web_search_options",
    }
)
"""Parameters of OpenAI that are refused, unless they are null."""


class TextPart(Strict):
    """One part of a message's content."""

    type: Literal["text"]
    text: Text


class FunctionCall(Strict):
    """The function that a tool call calls; `arguments` is JSON text."""

    name: Text
    arguments: Text

    @model_validator(mode="before")
    @classmethod
    def _drop_parsed(cls, data: Any) -> Any:
        return without(data, "parsed_arguments")


class ToolCall(Strict):
    """A call that an assistant made earlier in the chat."""

    id: Text
    type: Literal["function"]
    function: FunctionCall

    @model_validator(mode="before")
    @classmethod
    def _drop_index(cls, data: Any) -> Any:
        return without(data, "index")


class FunctionDefinition(Strict):
    """A function that the model may call; `parameters` is a JSON Schema."""

    name: Name
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool that the model may call."""

    type: Literal["function"]
    function: FunctionDefinition


class Message(Strict):
    """One message. `reasoning_content`, or `reasoning`, is an extension: what the assistant thought before it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[TextPart] | None = None
    name: Text | None = None
    tool_call_id: Text | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        # SDKs send an assistant's earlier message back as they got it, with the null fields of its response.
        data = without_nulls(without(data, "parsed"), {"refusal", "annotations", "audio", "function_call", "reasoning"})
        if (
            isinstance(data, dict)
            and "reasoning" in data
            and data.get("reasoning_content") in (None, data["reasoning"])
        ):
            # What vLLM and mlx-lm call it.
            return {**without(data, "reasoning"), "reasoning_content": data["reasoning"]}
        return data

    @model_validator(mode="after")
    def _fits_role(self) -> Self:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("needs content")
        if self.role != "assistant" and (self.tool_calls or self.reasoning_content is not None):
            raise ValueError("only messages of the assistant have tool_calls or reasoning_content")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("tool_call_id belongs to messages of role tool, and they need it")
        return self

    @property
    def text(self) -> str:
        """The content as one text; parts are joined without anything between them."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatRequest(SampledRequest):
    """The body of a request."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    prompt_cache_key: Label | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: JsonObject | None = None
    metadata: dict[Text, Text] | None = None
    store: bool | None = None
    service_tier: Text | None = None
    safety_identifier: Text | None = None
    prompt_cache_retention: Text | None = None
    prediction: JsonObject | None = None
    modalities: list[Literal["text"]] | None = None
    verbosity: Verbosity | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return without_nulls(data, _UNSUPPORTED)
