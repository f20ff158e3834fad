"""What requests to OpenAI's endpoints have in common: tools, and the parameters of sampling."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from agentmem.keys import check_text
from agentmem.limits import MAX_PENALTY, MAX_STOPS
from gateway.fields import UINT32, Count, ModelName, StopString, Strict, Text

MAX_CHOICES = 16
MAX_LOGIT_BIASES = 1024
MAX_TOOLS = 128


def _false(value: bool) -> bool:
    if value:
        raise ValueError("true is not supported")
    return value


def _label(value: str) -> str:
    return check_text("prompt_cache_key", value)


No = Annotated[bool, AfterValidator(_false), Field(json_schema_extra={"const": False})]
"""false, and not 0, which Literal[False] takes."""

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Verbosity = Literal["medium"]
"""How templates know no other; what a model is told otherwise belongs into its instructions."""

Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
Label = Annotated[Text, AfterValidator(_label)]
_Penalty = Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY)]


class StreamOptions(Strict):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: No | None = None


class SampledRequest(Strict):
    """What chat completions and completions have in common; top_k, min_p and repetition_penalty are beyond OpenAI's."""

    model: ModelName
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_LOGIT_BIASES)] | None
    ) = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    top_k: Annotated[int, Field(ge=0, le=UINT32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    user: Text | None = None


def without(data: Any, *names: str) -> Any:
    """`data` without what SDKs note beside an answer, and send back with it."""
    return {key: value for key, value in data.items() if key not in names} if isinstance(data, dict) else data


def without_nulls(data: Any, names: frozenset[str] | set[str]) -> Any:
    """`data` without those of `names` that say nothing: null, or an empty list."""
    if not isinstance(data, dict):
        return data
    return {key: value for key, value in data.items() if key not in names or not (value is None or value == [])}
