"""Names, errors and settings of the remote tier.

RemoteError
├── ObjectMissing
├── ObjectDamaged
├── RemoteUnavailable    the same call may succeed later
└── RemoteRefused        an operator has to mend something
    └── NotOwner
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from agentmem.kv.blockfile import FileKind, FileName
from agentmem.kv.object_location import Location


class ObjectName(NamedTuple):
    """A file, the xxh3_128 of its bytes, and its upload's random generation: a deletion deletes no later upload."""

    kind: FileKind
    chain_hash: bytes
    digest: bytes
    generation: str

    @property
    def file(self) -> FileName:
        return FileName(self.kind, self.chain_hash)


class RemoteError(Exception):
    """The message holds no secret."""


class ObjectMissing(RemoteError):
    """There is none."""


class ObjectDamaged(RemoteError):
    """It has other bytes."""


class RemoteUnavailable(RemoteError):
    """It did not answer, or is overloaded."""


class RemoteRefused(RemoteError):
    """Credentials, permissions, the bucket."""


class NotOwner(RemoteRefused):
    """The place is another store's."""


_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.\[\]:-]+/?")


@dataclass(frozen=True)
class RemoteSettings:
    """ "": as AWS's environment says. `timeout` is in seconds, of one request."""

    location: Location | None = None
    endpoint: str = ""
    region: str = ""
    timeout: float = 30.0


def check_endpoint(text: str) -> str:
    """Raises ValueError for an address with user, path or query."""
    if text and not _ENDPOINT.fullmatch(text):
        raise ValueError("must be http://HOST:PORT or https://HOST:PORT; credentials come from AWS's environment only")
    return text.rstrip("/")
