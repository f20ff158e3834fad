"""What requests to OpenAI's endpoints have in common: tools, and the parameters of sampling."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

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


def _label(value: str) -> str:
    return check_text("prompt_cache_key", value)


No = Annotated[bool, AfterValidator(_false), Field(json_schema_extra={"const": False})]
"""false, and not 0, which Literal[False] takes."""

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
NotStrict = Annotated[bool | None, BeforeValidator(_not_strict)]
ParallelToolCalls = Annotated[bool | None, BeforeValidator(_parallel)]
ToolChoice = Annotated[Literal["auto", "none"] | None, BeforeValidator(_choice_of_model)]

Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
Label = Annotated[Text, AfterValidator(_label)]
_Penalty = Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY)]


class StreamOptions(Strict):
    """Options of a stream."""

    include_usage: bool | None = None


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
