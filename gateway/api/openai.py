"""Sampling and the text's format in OpenAI's endpoints."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, create_model

from agentmem.errors import InvalidArgument
from agentmem.limits import MAX_LOGIT_BIASES, MAX_STOPS, SAMPLING
from agentmem.v1 import inference_pb2
from gateway.api.validation import (
    UINT32,
    Body,
    Forgiving,
    JsonObject,
    KeyPart,
    Limit,
    Many,
    StopString,
    TopK,
    TopP,
    within,
)

MAX_CHOICES = 16
MAX_CHOICE_BYTES = 32 * 1024 * 1024
"""Each of the turns has the prompt."""


def _false(value: bool) -> bool:
    if value:
        raise ValueError("true is not supported")
    return value


No = Annotated[bool, AfterValidator(_false), Field(json_schema_extra={"const": False})]
"""false, and not 0, which Literal[False] takes."""


class StreamOptions(Forgiving):
    include_usage: bool | None = None


def _by_id(biases: dict[str, float]) -> dict[int, float]:
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= UINT32) or key != str(int(key)):
            raise ValueError("its keys must be token ids")
    return {int(key): bias for key, bias in biases.items()}


_WIDER: Final[Mapping[str, Any]] = {
    "top_p": TopP,
    "top_k": TopK,
    "seed": Annotated[int, Field(ge=-(2**63), lt=2**64), AfterValidator(lambda value: value % 2**64)],
    "logit_bias": Annotated[
        dict[str, Annotated[float, within("logit_bias")]], Field(max_length=MAX_LOGIT_BIASES), AfterValidator(_by_id)
    ],
}
"""The dialect takes more of these than the contract, or by other types."""

if TYPE_CHECKING:
    _Sampled = Body
else:  # a field for each parameter of the contract
    _Sampled = create_model(
        "Sampled",
        __base__=Body,
        **{
            name: (_WIDER.get(name, Annotated[type(bounds.high), within(name)]) | None, None)
            for name, bounds in SAMPLING.items()
        },
    )


class SampledRequest(_Sampled):
    """The fields that chat completions and completions share."""

    model: KeyPart | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Limit | None = None
    stop: StopString | Annotated[Many[StopString], Field(max_length=MAX_STOPS)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


def choices(turns: Sequence[inference_pb2.GenerateRequest], number: int) -> tuple[inference_pb2.GenerateRequest, ...]:
    """Under a seed each choice has its own, so they differ and can be repeated.

    Raises InvalidArgument for more than MAX_CHOICE_BYTES in all.
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


class AnyText(Forgiving):
    type: Literal["text"]


class AnyJsonObject(Forgiving):
    type: Literal["json_object"]


class NamedSchema(Forgiving):
    """The text fits it whether `strict` or not; name and description do not reach the model."""

    name: str | None = None
    description: str | None = None
    json_schema: Annotated[JsonObject, Field(alias="schema")]
    strict: bool | None = None


class ChatJsonSchema(Forgiving):
    type: Literal["json_schema"]
    json_schema: NamedSchema


class ResponseJsonSchema(NamedSchema):
    type: Literal["json_schema"]


ResponseFormat = Annotated[AnyText | AnyJsonObject | ChatJsonSchema, Field(discriminator="type")]
TextFormat = Annotated[AnyText | AnyJsonObject | ResponseJsonSchema, Field(discriminator="type")]


def schema_of(wanted: AnyText | AnyJsonObject | ChatJsonSchema | ResponseJsonSchema | None) -> str | None:
    """Properties stay in their order; None: any text."""
    match wanted:
        case ChatJsonSchema(json_schema=NamedSchema(json_schema=schema)) | ResponseJsonSchema(json_schema=schema):
            return json.dumps(schema, ensure_ascii=False)
        case AnyJsonObject():
            return '{"type": "object"}'
    return None
