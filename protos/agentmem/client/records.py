"""Agents, snapshots, turns and models as frozen values. `raw` is the protobuf message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from agentmem.client.answers import ContextTrim, Memory, Version, value_of
from agentmem.client.inputs import Message
from agentmem.v1 import agent_pb2, model_pb2


def time_of(raw: Timestamp) -> datetime | None:
    """Return a time in UTC; None for the zero timestamp."""
    return raw.ToDatetime(UTC) if raw.seconds else None


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """One memory: an agent on a model. `tier` is the hottest one that has KV of it: "hot", "warm", "remote" or "none".

    `context_remaining` is None where the model is not loaded. `ttl` is the idle time after which its KV expires, and
    `delete_after` that after which it is deleted; None is never.
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
        """Return it, of the contract's message."""
        key, created, updated = raw.key, time_of(raw.create_time), time_of(raw.update_time)
        named = {"name": key.agent_id, "model": key.model_id, "namespace": key.namespace}
        return value_of(cls, raw, **named, version=Version.of(raw.version), created=created, updated=updated)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A named state of an agent; `automatic` ones are made where a turn, a trim or a restoration drops tokens."""

    name: str
    version: Version
    tokens: int
    created: datetime | None
    automatic: bool
    raw: agent_pb2.Snapshot = field(repr=False, compare=False)

    @classmethod
    def of(cls, raw: agent_pb2.Snapshot) -> Snapshot:
        """Return it, of the contract's message."""
        return value_of(cls, raw, version=Version.of(raw.version), created=time_of(raw.create_time))


@dataclass(frozen=True, slots=True)
class Turn:
    """One commit of a memory. `messages` and `text` are empty where they were not asked for."""

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
        """Return it, of the contract's message."""
        return value_of(cls, raw, created=time_of(raw.create_time), messages=tuple(map(Message.of, raw.messages)))


@dataclass(frozen=True, slots=True)
class Probe:
    """What a turn would reuse of the state `version`. Probing changes nothing."""

    memory: Memory
    version: Version | None
    raw: agent_pb2.ProbeAgentResponse = field(repr=False, compare=False)

    @classmethod
    def of(cls, raw: agent_pb2.ProbeAgentResponse) -> Probe:
        """Return it, of the contract's message."""
        trim = ContextTrim.of(raw.context_trim) if raw.HasField("context_trim") else None
        version = Version.of(raw.version) if raw.HasField("version") else None
        return cls(Memory.of_report(raw.cache, trim), version, raw)


@dataclass(frozen=True, slots=True)
class Erased:
    """How many memories were deleted, and the bytes of KV that this freed on disk; 0 where the answer was lost."""

    memories: int
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class Prefetched:
    """The tokens that are in the tier now, and the bytes that were read for it."""

    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Imported:
    """An agent that came from a file. `kv_misfit`: why its KV is computed again; "" where it was taken."""

    info: AgentInfo
    kv_misfit: str


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens of an input, and those that the model's context holds."""

    tokens: int
    context_length: int


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the worker serves. `memory` has the bytes of its parts by the contract's names, once it is known."""

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
        """Return it, of the contract's message."""
        parts = model_pb2.ModelMemory.DESCRIPTOR.fields if raw.HasField("memory") else ()
        return value_of(
            cls, raw, name=raw.model_id, memory={part.name: getattr(raw.memory, part.name) for part in parts}
        )


@dataclass(frozen=True, slots=True)
class LoadStep:
    """How far a load is: a stage ("wait", "fetch", "read", "self-test", "pool", "ready"), and the share of it.

    The last step has the model.
    """

    stage: str
    progress: float
    model: Model | None = None
