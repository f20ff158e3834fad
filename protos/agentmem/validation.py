"""Checks of requests that several processes make. An agent id may be any UTF-8: it is never part of a path."""

from typing import Final, NamedTuple

from google.protobuf import duration_pb2

from agentmem.errors import InvalidArgument
from agentmem.v1 import agent_pb2, types_pb2

DEFAULT_NAMESPACE = "default"
MAX_PART_BYTES = 256
MAX_NAME_BYTES: Final = 200
"""A conversation's name is a part of its agents' ids."""
REVISION_BYTES = 16
MAX_REQUEST_ID_BYTES = 128
AUTOMATIC_SNAPSHOT = "auto-"


class AgentKey(NamedTuple):
    """One agent on two models is two memories."""

    namespace: str
    agent_id: str
    model_id: str

    @classmethod
    def from_proto(cls, key: types_pb2.AgentKey, *, anonymous: bool = False, any_model: bool = False) -> "AgentKey":
        """Check a key; `anonymous` allows an empty agent_id, `any_model` an empty model_id. Raises InvalidArgument."""
        return cls(
            check_text("key.namespace", key.namespace),
            check_text("key.agent_id", key.agent_id, allow_empty=anonymous),
            check_text("key.model_id", key.model_id, allow_empty=any_model),
        )

    def to_proto(self) -> types_pb2.AgentKey:
        return types_pb2.AgentKey(namespace=self.namespace, agent_id=self.agent_id, model_id=self.model_id)


def automatic_snapshot(version: int) -> str:
    return f"{AUTOMATIC_SNAPSHOT}{version}"


def check_revision(field: str, value: bytes) -> bytes:
    """Return an agent's revision, or b"". Raises InvalidArgument."""
    if len(value) not in (0, REVISION_BYTES):
        raise InvalidArgument(field, f"must be {REVISION_BYTES} bytes, is {len(value)}")
    return value


def check_text(field: str, value: str, *, max_bytes: int = MAX_PART_BYTES, allow_empty: bool = False) -> str:
    """Return UTF-8 of 1 to `max_bytes` bytes. Raises InvalidArgument."""
    if not value:
        if allow_empty:
            return value
        raise InvalidArgument(field, "must not be empty")
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidArgument(field, "must be well-formed UTF-8 (it has a lone surrogate)") from error
    if size > max_bytes:
        raise InvalidArgument(field, f"must be at most {max_bytes} bytes of UTF-8, is {size}")
    return value


MAX_STOP_BYTES: Final = 256

MAX_TOP_LOGPROBS: Final = 20

MAX_WORKFLOW_BYTES: Final = 1024 * 1024

MAX_SCHEMA_BYTES: Final = 64 * 1024

MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
"""The payload and events of one put."""

MAX_SETUP_BYTES: Final = 48 * 1024 * 1024

MAX_SUMMARY_BYTES: Final = 16 * 1024


_LONGEST: Final = 100 * 365 * 24 * 3600 * 10**9


class IdleTimes(NamedTuple):
    """Idle nanoseconds until KV expires, and until the agent is deleted; None: never."""

    ttl: int | None = None
    delete_after: int | None = None

    @classmethod
    def from_proto(cls, message: types_pb2.Expiry | agent_pb2.SetAgentTtlRequest, field: str = "") -> "IdleTimes":
        """Raises InvalidArgument; `field` is a prefix."""
        return cls(
            _nanoseconds(f"{field}ttl", message.ttl) if message.HasField("ttl") else None,
            _nanoseconds(f"{field}delete_after", message.delete_after) if message.HasField("delete_after") else None,
        )

    def to_proto(self) -> types_pb2.Expiry:
        message = types_pb2.Expiry()
        if self.ttl is not None:
            message.ttl.FromNanoseconds(self.ttl)
        if self.delete_after is not None:
            message.delete_after.FromNanoseconds(self.delete_after)
        return message


NEVER: Final = IdleTimes()


def _nanoseconds(field: str, duration: duration_pb2.Duration) -> int:
    nanoseconds = duration.seconds * 10**9 + duration.nanos
    if not 0 < nanoseconds <= _LONGEST:
        raise InvalidArgument(field, "must be above 0 and at most 100 years; leave it out for never")
    return nanoseconds
