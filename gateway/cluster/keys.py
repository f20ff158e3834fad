"""The keys of callers that all nodes of a cluster share."""

import logging
import time
from collections.abc import Iterable
from datetime import UTC
from typing import Final

from pydantic import ValidationError

from agentmem.process.logs import event
from agentmem.v1 import cluster_pb2
from gateway.edge.key_ring import Known
from gateway.edge.keys import ApiKey

log = logging.getLogger(__name__)

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS' monotonic one counts sleep, too


def now() -> float:
    """Return the seconds of a clock that goes on while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


class ClusterKeys:
    """A source of keys, filled by the node's membership. Event loop only.

    They are current until the lease ends during which the store has read them: a node that is cut off from the database
    does not hear of revoked keys.
    """

    def __init__(self) -> None:
        self.version = ""
        self._keys: dict[str, ApiKey] = {}
        self._until = 0.0

    def look(self) -> Known:
        return Known(self._keys, is_current=self._until > now())

    def confirm(self, until: float) -> None:
        """Let the keys be current until `until`, a time of `now`."""
        self._until = until

    def take(self, answer: cluster_pb2.ListKeysResponse) -> None:
        self._keys, self.version = {key.id: key for key in _readable(answer.keys)}, answer.version
        event(log, "keys of the cluster read", keys=len(self._keys))


def _readable(keys: Iterable[cluster_pb2.Key]) -> Iterable[ApiKey]:
    for key in keys:
        try:
            yield _key(key)
        except ValidationError:  # then nobody has it
            event(log, "a key of the cluster cannot be read, and lets nobody in", logging.ERROR, id=key.id)


def _key(key: cluster_pb2.Key) -> ApiKey:
    return ApiKey(
        id=key.id,
        namespace=key.namespace,
        sha256=key.sha256,
        created=key.created.ToDatetime(UTC),
        expires=key.expires.ToDatetime(UTC) if key.HasField("expires") else None,
        label=key.label,
        admin=key.admin,
        max_running=key.max_running if key.HasField("max_running") else None,
        max_per_minute=key.max_per_minute if key.HasField("max_per_minute") else None,
    )
