"""Names, errors and settings of the remote tier; `s3` keeps its objects.

RemoteError
├── ObjectMissing        there is no such object: the file is a miss, and stays one
├── ObjectDamaged        its bytes are not those that were put: likewise
├── RemoteUnavailable    unreachable, slow or overloaded: the same call may succeed later
└── RemoteRefused        it will not, until an operator mends the settings or the bucket
    └── NotOwner         the place is another store's
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from agentmem.kv.blockfile import FileKind, FileName
from agentmem.kv.object_location import Location


class ObjectName(NamedTuple):
    """An object's name: the file that it is a copy of, the xxh3_128 of its bytes, its upload's random generation (hex).

    No two uploads have the same name, so that who deletes one deletes nothing that came after it.
    """

    kind: FileKind
    chain_hash: bytes
    digest: bytes
    generation: str

    @property
    def file(self) -> FileName:
        """The file that this is a copy of."""
        return FileName(self.kind, self.chain_hash)


class RemoteError(Exception):
    """The remote tier could not do it; the message says what was wrong, and holds no secret."""


class ObjectMissing(RemoteError):
    """There is no such object."""


class ObjectDamaged(RemoteError):
    """The object is not what was put: another size, or other bytes."""


class RemoteUnavailable(RemoteError):
    """It did not answer, or said that it is overloaded; try again later."""


class RemoteRefused(RemoteError):
    """It answered no: credentials, permissions, the bucket. An operator has to fix that first."""


class NotOwner(RemoteRefused):
    """The place is another store's."""


_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.\[\]:-]+/?")


@dataclass(frozen=True)
class RemoteSettings:
    """Which remote tier there is; credentials come from AWS's environment or files.

    `endpoint` "" is AWS's own, `region` "" what these say. `timeout` is in seconds, of one request.
    """

    location: Location | None = None
    endpoint: str = ""
    region: str = ""
    timeout: float = 30.0


def check_endpoint(text: str) -> str:
    """`text` if it is empty or an address without user, path and query. Raises ValueError."""
    if text and not _ENDPOINT.fullmatch(text):
        raise ValueError("must be http://HOST:PORT or https://HOST:PORT; credentials come from AWS's environment only")
    return text.rstrip("/")
