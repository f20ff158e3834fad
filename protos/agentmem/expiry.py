"""What idle agents lose, and when: the two times as both ends check them."""

from typing import Final, NamedTuple

from google.protobuf import duration_pb2

from agentmem.errors import InvalidArgument
from agentmem.v1 import agent_pb2, types_pb2

_LONGEST: Final = 100 * 365 * 24 * 3600 * 10**9


class IdleTimes(NamedTuple):
    """Idle nanoseconds until an agent's KV expires, and until the agent is deleted; None: never."""

    ttl: int | None = None
    delete_after: int | None = None

    @classmethod
    def from_proto(cls, message: types_pb2.Expiry | agent_pb2.SetAgentTtlRequest, field: str = "") -> "IdleTimes":
        """The times of a message. Raises InvalidArgument that names the one that is wrong, behind `field`."""
        return cls(
            _nanoseconds(f"{field}ttl", message.ttl) if message.HasField("ttl") else None,
            _nanoseconds(f"{field}delete_after", message.delete_after) if message.HasField("delete_after") else None,
        )

    def to_proto(self) -> types_pb2.Expiry:
        """The times as a message."""
        message = types_pb2.Expiry()
        if self.ttl is not None:
            message.ttl.FromNanoseconds(self.ttl)
        if self.delete_after is not None:
            message.delete_after.FromNanoseconds(self.delete_after)
        return message


NEVER: Final = IdleTimes()
"""An idle agent loses nothing."""


def _nanoseconds(field: str, duration: duration_pb2.Duration) -> int:
    nanoseconds = duration.seconds * 10**9 + duration.nanos
    if not 0 < nanoseconds <= _LONGEST:
        raise InvalidArgument(field, "must be above 0 and at most 100 years; leave it out for never")
    return nanoseconds
