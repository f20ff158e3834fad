"""Agents, snapshots, turns and models as frozen values; `raw` is the message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from agentmem.client.answers import ContextTrim, Memory, Version, value_of
from agentmem.client.inputs import Message
from agentmem.v1 import agent_pb2, model_pb2


def time_of(raw: Timestamp) -> datetime | None:
    """Return a time in UTC; None for zero."""
    return raw.ToDatetime(UTC) if raw.seconds else None


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """A memory: an agent on a model. `tier` is the hottest with KV of it: "hot", "warm", "remote" or "none".

    `context_remaining` is None if the model is not loaded. `ttl` and `delete_after`: None is never.
    """

    name: str
    model: str
    namespace: str
    version: Version
    tokens: int
    turns: int
    text_bytes: int
    warm_bytes: int
    warm_tokens: int
    blocks: int
    tier: str
    context_remaining: int | None
    created: datetime | None
    updated: datetime | None
    pinned: bool
    ttl: timedelta | None
    delete_after: timedelta | None
    context_policy: str
    template_time: str
    raw: agent_pb2.Agent = field(repr=False, compare=False)

    @classmethod
    def of(cls, raw: agent_pb2.Agent) -> AgentInfo:
        key, created, updated = raw.key, time_of(raw.create_time), time_of(raw.update_time)
        named = {"name": key.agent_id, "model": key.model_id, "namespace": key.namespace}
        return value_of(cls, raw, **named, version=Version.of(raw.version), created=created, updated=updated)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A named state; `automatic` ones keep what a turn, a trim or a restoration dropped."""

    name: str
    version: Version
    tokens: int
    created: datetime | None
    automatic: bool
    raw: agent_pb2.Snapshot = field(repr=False, compare=False)

    @classmethod
    def of(cls, raw: agent_pb2.Snapshot) -> Snapshot:
        return value_of(cls, raw, version=Version.of(raw.version), created=time_of(raw.create_time))


@dataclass(frozen=True, slots=True)
class Turn:
    """`messages` and `text` are empty unless asked for."""

    version: int
    first_token: int
    tokens: int
    generated_tokens: int
    cut: bool
    request_id: str
    created: datetime | None
    messages: tuple[Message, ...]
    text: bytes = field(repr=False)
    raw: agent_pb2.Turn = field(repr=False, compare=False)

    @classmethod
    def of(cls, raw: agent_pb2.Turn) -> Turn:
        return value_of(cls, raw, created=time_of(raw.create_time), messages=tuple(map(Message.of, raw.messages)))


@dataclass(frozen=True, slots=True)
class Probe:
    """The memory that a turn would reuse of the state `version`."""

    memory: Memory
    version: Version | None
    raw: agent_pb2.ProbeAgentResponse = field(repr=False, compare=False)

    @classmethod
    def of(cls, raw: agent_pb2.ProbeAgentResponse) -> Probe:
        trim = ContextTrim.of(raw.context_trim) if raw.HasField("context_trim") else None
        version = Version.of(raw.version) if raw.HasField("version") else None
        return cls(Memory.of_report(raw.cache, trim), version, raw)


@dataclass(frozen=True, slots=True)
class Erased:
    """Memories deleted, and bytes freed on disk; 0 if the answer was lost."""

    memories: int
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class Prefetched:
    """Tokens in the tier now, and bytes read."""

    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Imported:
    """`kv_misfit`: why its KV is computed again, or ""."""

    info: AgentInfo
    kv_misfit: str


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens of an input, and of the model's context."""

    tokens: int
    context_length: int


@dataclass(frozen=True, slots=True)
class Model:
    """`memory` has the bytes of its parts by the contract's names, once known."""

    name: str
    state: str
    is_default: bool
    pinned: bool
    context_length: int
    architecture: str
    kv_bits: str
    weight_bytes: int
    kv_bytes_per_token: int
    tool_parser: str
    error: str
    memory: Mapping[str, int]
    raw: model_pb2.Model = field(repr=False, compare=False)

    @classmethod
    def of(cls, raw: model_pb2.Model) -> Model:
        parts = model_pb2.ModelMemory.DESCRIPTOR.fields if raw.HasField("memory") else ()
        return value_of(
            cls, raw, name=raw.model_id, memory={part.name: getattr(raw.memory, part.name) for part in parts}
        )


@dataclass(frozen=True, slots=True)
class LoadStep:
    """A stage of loading (a LoadStage), and progress in it from 0 to 1. The last has the model."""

    stage: str
    progress: float
    model: Model | None = None
