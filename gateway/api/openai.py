"""Fields that requests to OpenAI's endpoints share: sampling, and the text's format."""

import json
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from agentmem.errors import InvalidArgument
from agentmem.limits import MAX_LOGIT_BIASES, MAX_STOPS
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.validation import Body, Forgiving, JsonObject, KeyPart, Limit, Many, StopString, TopK, TopP, within

MAX_CHOICES = 16
MAX_CHOICE_BYTES = 32 * 1024 * 1024
"""Bytes of the turns of all choices; each turn has the prompt."""


def _false(value: bool) -> bool:
    if value:
        raise ValueError("true is not supported")
    return value


No = Annotated[bool, AfterValidator(_false), Field(json_schema_extra={"const": False})]
"""false, and not 0, which Literal[False] takes."""

Temperature = Annotated[float, within("temperature")]


class StreamOptions(Forgiving):
    """Options of a stream."""

    include_usage: bool | None = None


class SampledRequest(Body):
    """What chat completions and completions have in common; top_k, min_p and repetition_penalty are beyond OpenAI's."""

    model: KeyPart | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Limit | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stop: StopString | Annotated[Many[StopString], Field(max_length=MAX_STOPS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, within("logit_bias")]], Field(max_length=MAX_LOGIT_BIASES)] | None
    ) = None
    presence_penalty: Annotated[float, within("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, within("frequency_penalty")] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    top_k: TopK | None = None
    min_p: Annotated[float, within("min_p")] | None = None
    repetition_penalty: Annotated[float, within("repetition_penalty")] | None = None

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
            temperature=self.temperature,
            # Negative seeds are allowed in the dialect and not in the contract.
            seed=None if self.seed is None else self.seed % 2**64,
            logit_bias={_token_id(key): bias for key, bias in (self.logit_bias or {}).items()},
            **given,
        )


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < 2**32) or key != str(int(key)):
        raise InvalidArgument("logit_bias", "its keys must be token ids")
    return int(key)


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


class AnyText(Forgiving):
    """Any text."""

    type: Literal["text"]


class AnyJsonObject(Forgiving):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Forgiving):
    """A JSON Schema. The text fits it whether `strict` or not; name and description do not reach the model."""

    name: str | None = None
    description: str | None = None
    json_schema: Annotated[JsonObject, Field(alias="schema")]
    strict: bool | None = None


class ChatJsonSchema(Forgiving):
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
