"""What requests to OpenAI's endpoints share: parameters of sampling, tools and their choice, the text's format."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Discriminator, Field, Tag

from agentmem.errors import InvalidArgument
from agentmem.limits import MAX_LOGIT_BIASES, MAX_STOPS
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.validation import Count, Forgiving, Json, JsonObject, KeyPart, StopString, Strict, Text, within

MAX_CHOICES = 16
MAX_CHOICE_BYTES = 32 * 1024 * 1024
"""Bytes of the turns of all choices; each turn has the prompt."""
MAX_TOOLS = 128
DEFAULT_TEMPERATURE = 1.0
"""OpenAI's; the contract's is 0."""


def _false(value: bool) -> bool:
    if value:
        raise ValueError("true is not supported")
    return value


No = Annotated[bool, AfterValidator(_false), Field(json_schema_extra={"const": False})]
"""false, and not 0, which Literal[False] takes."""

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Verbosity = Literal["medium"]
"""Templates know no other; what else a model is to do belongs into its instructions."""

Temperature = Annotated[float, within("temperature")]
TopP = Annotated[float, within("top_p")]


class StreamOptions(Strict):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: No | None = None


class SampledRequest(Forgiving):
    """What chat completions and completions have in common; top_k, min_p and repetition_penalty are beyond OpenAI's."""

    model: KeyPart
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, within("logit_bias")]], Field(max_length=MAX_LOGIT_BIASES)] | None
    ) = None
    presence_penalty: Annotated[float, within("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, within("frequency_penalty")] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    top_k: Annotated[int, within("top_k")] | None = None
    min_p: Annotated[float, within("min_p")] | None = None
    repetition_penalty: Annotated[float, within("repetition_penalty")] | None = None
    user: Text | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def sampling(self) -> types_pb2.Sampling:
        """Return the sampling of the first choice. Raises InvalidArgument for a logit_bias of no token id."""
        same = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        given = {name: value for name in same if (value := getattr(self, name)) is not None}
        return types_pb2.Sampling(
            temperature=DEFAULT_TEMPERATURE if self.temperature is None else self.temperature,
            # Negative seeds are allowed in the dialect and not in the contract.
            seed=None if self.seed is None else self.seed % 2**64,
            logit_bias={_token_id(key): bias for key, bias in (self.logit_bias or {}).items()},
            **given,
        )


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < 2**32) or key != str(int(key)):
        raise InvalidArgument("logit_bias", "its keys must be token ids")
    return int(key)


def refuse_idle_stream_options(stream_options: Strict | None, stream: bool | None) -> None:
    """Raise InvalidArgument for stream_options without a stream."""
    if stream_options is not None and not stream:
        raise InvalidArgument("stream_options", "is only allowed with stream")


def choices(turns: Sequence[inference_pb2.GenerateRequest], number: int) -> tuple[inference_pb2.GenerateRequest, ...]:
    """Return each of `turns` for several choices. Under a seed each has its own, so they differ and can be repeated.

    Raises InvalidArgument where the choices have more than MAX_CHOICE_BYTES in all.
    """
    if number > 1 and number * sum(turn.ByteSize() for turn in turns) > MAX_CHOICE_BYTES:
        raise InvalidArgument("n", "asks for too many choices of so long a prompt; ask for fewer at once")
    return tuple(choice for turn in turns for choice in (turn, *(_choice(turn, index) for index in range(1, number))))


def _choice(turn: inference_pb2.GenerateRequest, number: int) -> inference_pb2.GenerateRequest:
    choice = inference_pb2.GenerateRequest()
    choice.CopyFrom(turn)
    if choice.sampling.HasField("seed"):
        choice.sampling.seed = (choice.sampling.seed + number) % 2**64
    return choice


class FunctionDefinition(Forgiving):
    """A function that the model may call; `parameters` is a JSON Schema."""

    name: Name
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    def to_tool(self) -> Json:
        """Return the tool as templates take it: without what it leaves open, and without `strict`."""
        described = {"description": self.description, "parameters": self.parameters}
        function = {"name": self.name} | {key: value for key, value in described.items() if value is not None}
        return {"type": "function", "function": function}


_Mode = Literal["auto", "required"]


class _Named(Strict):
    name: Name


class ChatFunction(Strict):
    """One function, as chat requests name it."""

    type: Literal["function"]
    function: _Named

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name


class ResponseFunction(Strict):
    """One function, as requests for a response name it."""

    type: Literal["function"]
    name: Name


class _Allowed(Strict):
    mode: _Mode
    tools: Annotated[list[ChatFunction], Field(min_length=1)]


class ChatAllowedTools(Strict):
    """Some of the functions, as chat requests name them."""

    type: Literal["allowed_tools"]
    allowed_tools: _Allowed


class ResponseAllowedTools(Strict):
    """Some of the functions, as requests for a response name them."""

    type: Literal["allowed_tools"]
    mode: _Mode
    tools: Annotated[list[ResponseFunction], Field(min_length=1)]


def _kind(value: Any) -> Any:
    if isinstance(value, str):
        return "word"
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


_Word = Annotated[Literal["auto", "none", "required"], Tag("word")]
_One_of = Discriminator(
    _kind,
    custom_error_type="tool_choice",
    custom_error_message='must be "auto", "none", "required", a function or allowed_tools',
)
ChatToolChoice: TypeAlias = Annotated[
    _Word | Annotated[ChatFunction, Tag("function")] | Annotated[ChatAllowedTools, Tag("allowed_tools")], _One_of
]
ResponseToolChoice: TypeAlias = Annotated[
    _Word | Annotated[ResponseFunction, Tag("function")] | Annotated[ResponseAllowedTools, Tag("allowed_tools")],
    _One_of,
]


def held_calls(
    choice: str | ChatFunction | ChatAllowedTools | ResponseFunction | ResponseAllowedTools | None,
    tools: Sequence[FunctionDefinition],
    *,
    parallel: bool | None,
) -> inference_pb2.ToolChoice | None:
    """Return what the grammar holds calls to, in the contract's words; None where they are the model's own.

    `tools` are those that the model gets. Raises InvalidArgument for a choice among other tools.
    """
    required, names, single = choice == "required", list[str](), parallel is False
    match choice:
        case ChatFunction() | ResponseFunction():
            required, names, single = True, [choice.name], True
        case ChatAllowedTools(allowed_tools=allowed) | (ResponseAllowedTools() as allowed):
            required, names = allowed.mode == "required", [function.name for function in allowed.tools]
    if (required or names) and not tools:
        raise InvalidArgument("tool_choice", "needs tools")
    if not set(names) <= {tool.name for tool in tools}:
        raise InvalidArgument("tool_choice", "names a function that is not among the tools")
    strict = [tool.name for tool in tools if tool.strict]
    if not tools or not (required or names or single or strict):
        return None
    return inference_pb2.ToolChoice(required=required, names=names, single=single, strict=strict)


class AnyText(Strict):
    """Any text."""

    type: Literal["text"]


class AnyJsonObject(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Strict):
    """A JSON Schema. The text fits it whether `strict` or not; name and description do not reach the model."""

    name: Name
    description: Text | None = None
    json_schema: Annotated[JsonObject, Field(alias="schema")]
    strict: bool | None = None


class ChatJsonSchema(Strict):
    """JSON that fits a schema, as chat requests say it."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class ResponseJsonSchema(NamedSchema):
    """JSON that fits a schema, as requests for a response say it."""

    type: Literal["json_schema"]


ResponseFormat = Annotated[AnyText | AnyJsonObject | ChatJsonSchema, Field(discriminator="type")]
TextFormat = Annotated[AnyText | AnyJsonObject | ResponseJsonSchema, Field(discriminator="type")]


def schema_of(wanted: AnyText | AnyJsonObject | ChatJsonSchema | ResponseJsonSchema | None) -> str | None:
    """Return the JSON Schema that the text has to fit, as JSON, properties in their order; None for any text."""
    match wanted:
        case ChatJsonSchema(json_schema=NamedSchema(json_schema=schema)) | ResponseJsonSchema(json_schema=schema):
            return json.dumps(schema, ensure_ascii=False)
        case AnyJsonObject():
            return '{"type": "object"}'
    return None
