"""What a request to /v1/chat/completions may hold; everything else is refused by name.

Supported: model, messages, stream, stream_options.include_usage, max_tokens, max_completion_tokens, temperature, top_p,
stop, seed, n, logprobs, top_logprobs, logit_bias, presence_penalty, frequency_penalty, prompt_cache_key (which only
narrows the search for the conversation), tools of type function, tool_choice; and beyond OpenAI's top_k, min_p,
repetition_penalty. Accepted without effect: user, metadata, store=false, parallel_tool_calls=true. A null counts as not
given.

What a model calls is its own choice, so of tool_choice only "auto" and "none" can be honoured; strict definitions and
parallel_tool_calls=false cannot. With "none" the model is not told of the tools: one that sees them may call them.
"""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from agentmem.keys import check_text
from agentmem.limits import MAX_PENALTY, MAX_STOP_BYTES, MAX_STOPS, MAX_TOP_LOGPROBS

MAX_CHOICES = 16
MAX_LOGIT_BIASES = 1024
MAX_TOOLS = 128
_UINT32 = 2**32 - 1
_UNSUPPORTED = frozenset(
    {
        "audio",
        "function_call",
        "functions",
        "modalities",
        "moderation",
        "prediction",
        "prompt_cache_retention",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "service_tier",
        "verbosity",
        "web_search_options",
    }
)
"""Parameters of OpenAI that are refused, unless they are null."""


def _well_formed(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must be well-formed Unicode (it has a lone surrogate)") from None
    return value


Text = Annotated[str, AfterValidator(_well_formed)]
"""JSON can spell half of a surrogate pair; UTF-8 cannot."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class TextPart(_Strict):
    """One part of a message's content."""

    type: Literal["text"]
    text: Text


class FunctionCall(_Strict):
    """The function that a tool call calls; `arguments` is JSON text."""

    name: Text
    arguments: Text

    @model_validator(mode="before")
    @classmethod
    def _drop_parsed(cls, data: Any) -> Any:
        return _without(data, "parsed_arguments")


class ToolCall(_Strict):
    """A call that an assistant made earlier in the chat."""

    id: Text
    type: Literal["function"]
    function: FunctionCall

    @model_validator(mode="before")
    @classmethod
    def _drop_index(cls, data: Any) -> Any:
        return _without(data, "index")


def _json_object(value: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError("must be well-formed Unicode (it has a lone surrogate)") from None
    except (ValueError, RecursionError):
        raise ValueError("must be JSON: finite numbers, nested not too deeply") from None
    return value


def _not_strict(value: Any) -> Any:
    if value is True:
        raise ValueError("true cannot be honoured: the model may write arguments that do not fit; check them")
    return value


def _parallel(value: Any) -> Any:
    if value is False:
        raise ValueError("false cannot be honoured: the model may make several calls; answer all of them")
    return value


def _choice_of_model(value: Any) -> Any:
    if value not in ("auto", "none", None):
        raise ValueError('only "auto" and "none" can be honoured: the model chooses what it calls')
    return value


class FunctionDefinition(_Strict):
    """A function that the model may call; `parameters` is a JSON Schema."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(_json_object)] | None = None
    strict: Annotated[Literal[False] | None, BeforeValidator(_not_strict)] = None


class Tool(_Strict):
    """A tool that the model may call."""

    type: Literal["function"]
    function: FunctionDefinition


class Message(_Strict):
    """One message. `reasoning_content` is an extension, for templates that render it."""

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
        data = _without(data, "parsed")
        return _without_nulls(data, {"refusal", "annotations", "audio", "function_call"})

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


class StreamOptions(_Strict):
    """Options of a stream."""

    include_usage: bool | None = None


def _stop(value: str) -> str:
    if not 1 <= len(value.encode()) <= MAX_STOP_BYTES:
        raise ValueError(f"stop strings have 1 to {MAX_STOP_BYTES} bytes")
    return value


def _model(value: str) -> str:
    return check_text("model", value)


def _label(value: str) -> str:
    return check_text("prompt_cache_key", value)


_StopString = Annotated[Text, AfterValidator(_stop)]
_Penalty = Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY)]
_Count = Annotated[int, Field(ge=1, le=_UINT32)]


class ChatRequest(_Strict):
    """The body of a request."""

    model: Annotated[str, Field(min_length=1), AfterValidator(_model)]
    messages: Annotated[list[Message], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stop: _StopString | Annotated[list[_StopString], Field(max_length=MAX_STOPS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_LOGIT_BIASES)] | None
    ) = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    top_k: Annotated[int, Field(ge=0, le=_UINT32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    prompt_cache_key: Annotated[Text, AfterValidator(_label)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Annotated[Literal["auto", "none"] | None, BeforeValidator(_choice_of_model)] = None
    parallel_tool_calls: Annotated[bool | None, BeforeValidator(_parallel)] = None
    user: Text | None = None
    metadata: dict[Text, Text] | None = None
    store: Literal[False] | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return _without_nulls(data, _UNSUPPORTED)


def _without_nulls(data: Any, names: frozenset[str] | set[str]) -> Any:
    """`data` without those of `names` that say nothing: null, or an empty list."""
    if not isinstance(data, dict):
        return data
    return {key: value for key, value in data.items() if key not in names or not (value is None or value == [])}


def _without(data: Any, name: str) -> Any:
    """`data` without what SDKs have noted beside an earlier answer that they took from a stream, and send back."""
    return {key: value for key, value in data.items() if key != name} if isinstance(data, dict) else data
