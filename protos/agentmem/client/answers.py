from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration

from agentmem.v1 import inference_pb2, types_pb2
from agentmem.words import short_name, tier_name, warning

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FinishReason: TypeAlias = Literal["stop", "stop_string", "length", "context", "prefilled", "tool_calls", ""]
"""Why the answer ended; "" for an unknown reason."""

Match: TypeAlias = Literal["new", "exact", "extend", "partial", "diverge", ""]
"""The input and the memory: there was none; the same, continued, a shared beginning, too little shared; "" for
unknown.
"""


_T = TypeVar("_T", bound="DataclassInstance")


def value_of(kind: type[_T], raw: Any, **others: Any) -> _T:
    """Return a value with a message's fields of the same names, and `others`.

    Enums become short names, Durations timedelta, unset fields None.
    """
    values = {field.name: _field_of(raw, field) for field in _shared(kind, raw.DESCRIPTOR)}
    if "raw" in kind.__dataclass_fields__:
        values["raw"] = raw
    return kind(**values | others)


@cache
def _shared(kind: type[DataclassInstance], descriptor: Descriptor) -> list[FieldDescriptor]:
    return [field for field in descriptor.fields if field.name in kind.__dataclass_fields__]


def _field_of(raw: Any, field: FieldDescriptor) -> Any:
    if field.has_presence and not raw.HasField(field.name):
        return None
    value = getattr(raw, field.name)
    if field.enum_type is not None:
        return short_name(field.enum_type, value)
    return value.ToTimedelta() if isinstance(value, Duration) else value


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made."""

    id: str
    name: str
    arguments_json: str

    @property
    def arguments(self) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(self.arguments_json))


@dataclass(frozen=True, slots=True)
class Version:
    """A state of an agent; the same only if all three are equal."""

    uid: str
    version: int
    revision: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, raw: types_pb2.AgentVersion) -> Version:
        return value_of(cls, raw)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one turn; completion includes reasoning."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of one turn on the worker; `first_token` counts from arrival; 0: there is none."""

    queue: float
    load: float
    prefill: float
    decode: float
    first_token: float


@dataclass(frozen=True, slots=True)
class ContextTrim:
    """Memory dropped to fit the context. `snapshot` keeps it; `summary` replaces it."""

    policy: str
    dropped_tokens: int
    dropped_turns: int
    snapshot: str
    summary: str
    summary_failure: str

    @classmethod
    def of(cls, raw: types_pb2.ContextTrim) -> ContextTrim:
        return value_of(cls, raw)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory that a turn reused: `reused` of `prompt_tokens`, by tier, and why not more ("": all).

    `snapshot_version`: the snapshot that the prompt continues; None: the present state. `dropped_tokens` were not
    continued; `dropped_snapshot` keeps them.
    """

    match: Match
    reused: int
    prompt_tokens: int
    tiers: Mapping[str, int]
    miss_reason: str
    load_bytes: int
    snapshot_version: int | None
    context_remaining: int = 0
    appended: bool = False
    dropped_tokens: int = 0
    dropped_snapshot: str = ""
    trim: ContextTrim | None = None

    @classmethod
    def of(cls, started: inference_pb2.Started) -> Memory:
        trim = ContextTrim.of(started.context_trim) if started.HasField("context_trim") else None
        return value_of(cls, started, **_reported(started.cache), trim=trim)

    @classmethod
    def of_report(cls, report: types_pb2.CacheReport, trim: ContextTrim | None = None) -> Memory:
        return cls(**_reported(report), trim=trim)


def _reported(report: types_pb2.CacheReport) -> dict[str, Any]:
    tiers = {tier_name(part.tier): part.tokens for part in report.cached}
    return {
        "match": short_name(types_pb2.Match.DESCRIPTOR, report.match),
        "reused": sum(tiers.values()),
        "prompt_tokens": report.prompt_tokens,
        "tiers": tiers,
        "miss_reason": short_name(types_pb2.MissReason.DESCRIPTOR, report.miss_reason),
        "load_bytes": report.load_bytes,
        "snapshot_version": report.snapshot_version or None,
    }


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A generated token; `top` are the likeliest, by bytes."""

    token_id: int
    logprob: float
    token_bytes: bytes
    top: tuple[tuple[bytes, float], ...] = ()
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a turn; `str()` is its text. `version` is the agent's new state, None if nothing is kept.

    `durable`: the turn is on disk. `replayed`: it was committed earlier. `warning`: effects that may not be meant, or
    "".
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    usage: Usage
    memory: Memory
    timings: Timings
    version: Version | None
    durable: bool
    replayed: bool
    warning: str
    request_id: str
    stop_string: str
    token_ids: tuple[int, ...] = field(repr=False)
    logprobs: tuple[TokenLogprob, ...] = field(repr=False)
    raw: tuple[inference_pb2.Started, inference_pb2.Finished] = field(repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    def json(self) -> Any:
        """Parse the text of a turn with a `json_schema`. Raises ValueError if it was cut."""
        return json.loads(self.text)


@dataclass(frozen=True, slots=True)
class Recalled:
    """The turn began."""

    memory: Memory


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Called:
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Restarted:
    """The turn's new answer differs: discard all earlier events."""


Event: TypeAlias = Recalled | Reasoning | Text | Called | Restarted


@dataclass(eq=False)
class Growing:
    """One attempt's answer so far."""

    reasoning: str = ""
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def add(self, delta: inference_pb2.Delta) -> None:
        self.reasoning += delta.reasoning
        self.text += delta.text
        self.calls += [ToolCall(call.id, call.name, call.arguments_json) for call in delta.tool_calls]
        self.token_ids += delta.token_ids
        self.logprobs += map(_logprob, delta.logprobs)

    def begins(self, other: Growing) -> bool:
        """Return whether this is a beginning of `other`: reasoning, then text, then calls."""
        begun = self.text or self.calls
        thought = self.reasoning == other.reasoning if begun else other.reasoning.startswith(self.reasoning)
        return thought and other.text.startswith(self.text) and other.calls[: len(self.calls)] == self.calls

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Growing) and self.begins(other) and other.begins(self)

    def since(self, other: Growing) -> Iterable[Event]:
        """Yield what `other`, a beginning of this, lacks."""
        if thought := self.reasoning[len(other.reasoning) :]:
            yield Reasoning(thought)
        if said := self.text[len(other.text) :]:
            yield Text(said)
        yield from map(Called, self.calls[len(other.calls) :])

    def ended(self, started: inference_pb2.Started, finished: inference_pb2.Finished, request_id: str) -> Answer:
        return Answer(
            text=self.text,
            reasoning=self.reasoning,
            tool_calls=tuple(self.calls),
            finish_reason=cast("FinishReason", short_name(types_pb2.FinishReason.DESCRIPTOR, finished.reason)),
            usage=usage_of(finished.usage),
            memory=Memory.of(started),
            timings=timings_of(finished.timings),
            version=Version.of(finished.version) if finished.HasField("version") else None,
            durable=finished.durable,
            replayed=finished.replayed,
            warning=warning(started),
            request_id=request_id,
            stop_string=finished.stop_string,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            raw=(started, finished),
        )


def _logprob(token: inference_pb2.TokenLogprob) -> TokenLogprob:
    top = tuple((each.token_bytes, each.logprob) for each in token.top)
    return TokenLogprob(token.token_id, token.logprob, token.token_bytes, top, token.reasoning)


def usage_of(raw: types_pb2.Usage) -> Usage:
    cached = sum(part.tokens for part in raw.cached)
    return Usage(raw.prompt_tokens, cached, raw.completion_tokens, raw.reasoning_tokens)


def timings_of(raw: types_pb2.Timings) -> Timings:
    parts = (raw.queue, raw.load, raw.prefill, raw.decode, raw.time_to_first_token)
    return Timings(*map(seconds_of, parts))


def seconds_of(duration: Duration) -> float:
    return duration.ToTimedelta().total_seconds()
