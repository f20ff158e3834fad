"""Agent keys: which memory is meant, checked before anything is touched.

An agent id is any UTF-8 of 1 to 256 bytes, hostile or not, because it never becomes a part of a path: files are named
by chain hashes, and rows by values.
"""

from typing import NamedTuple

from agentmem.errors import InvalidArgument
from agentmem.v1 import types_pb2

DEFAULT_NAMESPACE = "default"
MAX_PART_BYTES = 256
MAX_REQUEST_ID_BYTES = 128
AUTOMATIC_SNAPSHOT = "auto-"
"""What the names of snapshots begin with that the store makes by itself."""


class AgentKey(NamedTuple):
    """(namespace, agent_id, model_id): one agent on two models is two memories."""

    namespace: str
    agent_id: str
    model_id: str

    @classmethod
    def from_proto(cls, key: types_pb2.AgentKey, *, anonymous: bool = False, any_model: bool = False) -> "AgentKey":
        """The key, checked. `anonymous` allows an empty agent_id, `any_model` an empty model_id.

        Raises InvalidArgument that names the field.
        """
        return cls(
            check_text("key.namespace", key.namespace),
            check_text("key.agent_id", key.agent_id, allow_empty=anonymous),
            check_text("key.model_id", key.model_id, allow_empty=any_model),
        )

    def to_proto(self) -> types_pb2.AgentKey:
        """The key as a message."""
        return types_pb2.AgentKey(namespace=self.namespace, agent_id=self.agent_id, model_id=self.model_id)


def automatic_snapshot(version: int) -> str:
    """The name of the automatic snapshot that keeps this version of an agent."""
    return f"{AUTOMATIC_SNAPSHOT}{version}"


def check_text(field: str, value: str, *, max_bytes: int = MAX_PART_BYTES, allow_empty: bool = False) -> str:
    """`value` if it is UTF-8 of 1 to `max_bytes` bytes; raises InvalidArgument that names `field`."""
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
