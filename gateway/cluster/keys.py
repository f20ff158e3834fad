"""The callers' keys of a cluster."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from agentmem.diagnostics import FileError
from agentmem.process.logs import event
from agentmem.v1 import cluster_pb2
from gateway.edge import key_file
from gateway.edge.key_ring import Known
from gateway.edge.keys import ApiKey

log = logging.getLogger(__name__)

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS' monotonic one counts sleep, too

_PLACE: Final = Path("the keys of the cluster")


def now() -> float:
    """Return seconds, also those of the machine's sleep."""
    return time.clock_gettime(_CLOCK)


class ClusterKeys:
    """A KeySource. Event loop only.

    Keys are current until the lease ends during which they were read: a node that is cut off does not hear of revoked
    keys.
    """

    def __init__(self) -> None:
        self.version = ""
        self._keys: Mapping[str, ApiKey] = {}
        self._until = 0.0
        self._problem = ""

    def look(self) -> Known:
        return Known(self._keys, is_current=self._until > now() and not self._problem)

    def confirm(self, until: float) -> None:
        self._until = until

    def take(self, answer: cluster_pb2.GetKeysResponse) -> None:
        self.version, self._problem = answer.version, ""
        try:
            self._keys, unknown = key_file.parse_known(_PLACE, answer.keys.decode()) if answer.keys else ({}, None)
        except (FileError, UnicodeDecodeError) as error:
            self._problem = str(error)
            event(log, "the keys cannot be read, so every request is refused", logging.ERROR, problem=self._problem)
            return
        if unknown is not None:
            event(log, "keys that cannot be read are left out", logging.ERROR, problem=str(unknown))
        event(log, "keys of the cluster read", keys=len(self._keys))
