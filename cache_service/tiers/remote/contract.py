"""What a remote tier does, and how settings name one: the contract between the store and whatever keeps its objects.

    RemoteError
    ├── ObjectMissing        there is no such object: the file is a miss, and stays one
    ├── ObjectDamaged        its bytes are not those that were put: likewise
    ├── RemoteUnavailable    unreachable, slow or overloaded: the same call may succeed later
    └── RemoteRefused        it will not, until an operator mends the settings or the bucket
        └── NotOwner         the place is another store's

An object is immutable and named by what was computed and by the digest of its bytes, so two objects of one name are the
same bytes: an upload that finds its object there has nothing to do, and every method may be repeated.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agentmem.kv.blockfile import FileKind, FileName
from agentmem.kv.object_location import Location


class ObjectName(NamedTuple):
    """An object's name: the file that it is a copy of, the xxh3_128 of its bytes, and who made it.

    A chain hash names inputs, and computing them again may give other bytes; with the digest in the name, what belongs
    to a file that was deleted is never mistaken for the one that came after it. Where several machines upload, each
    upload has a random generation, in hex, so that none of them deletes what another one has just made.
    """

    kind: FileKind
    chain_hash: bytes
    digest: bytes
    generation: str = ""

    @property
    def file(self) -> FileName:
        """The file that this is a copy of."""
        return FileName(self.kind, self.chain_hash)


@dataclass(frozen=True)
class Claim:
    """Who wants the place. `owner` is the data directory's, for good; `session` is new at each start.

    `known` are the sessions that this directory may have left there: the last one, and one that a crash interrupted.
    `may_create` says whether an empty place is right, or a sign that the settings name another one than before, or that
    this one is handed over by hand.
    """

    owner: str
    session: str
    known: frozenset[str] = frozenset()
    may_create: bool = True


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
    """The place is another store's, or another copy of this data directory has used it since."""


class RemoteTier(ABC):
    """Keeps copies of published files. All methods block and may be called from several network threads at once.

    The store calls `claim` once at each start, again and again while it is unavailable, and nothing else before it has
    succeeded. Implementations retry what is worth it for seconds; the store's own queues retry for as long as it takes.
    """

    location: str
    """Where the objects are, as an operator would write it; "" where none are kept. Two spellings are two places."""

    @abstractmethod
    def claim(self, claim: Claim) -> None:
        """Take the place, empty or ours. Raises NotOwner, RemoteRefused, RemoteUnavailable.

        Atomic: of two that claim at once one succeeds. Repeating a claim that succeeded changes nothing.
        """

    @abstractmethod
    def holds(self, claim: Claim) -> bool:
        """Whether the place is still this claim's. Called before deletions, which others must not suffer.

        Raises RemoteRefused, RemoteUnavailable.
        """

    @abstractmethod
    def put(self, name: ObjectName, path: Path) -> None:
        """Upload a published file, if the object isn't there. When this returns it is there, whole.

        The bytes are checked against the digest first, so that damage on the disk does not spread. Raises ObjectDamaged
        if they differ or the disk cannot read them, ObjectMissing if there is no file (any more), OSError if it cannot
        be opened now, RemoteRefused, RemoteUnavailable; after the latter the object may be there or not.
        """

    @abstractmethod
    def get(self, name: ObjectName, size_bytes: int, target: Path) -> None:
        """Bring an object's bytes to `target`, a path in staging/ where nothing is; mode 0600, not fsynced.

        Every byte was verified when this returns; where it raises, `target` is gone. Raises ObjectMissing,
        ObjectDamaged, RemoteRefused, RemoteUnavailable; ResourceExhausted and Internal of the local disk.
        """

    @abstractmethod
    def delete(self, names: Sequence[ObjectName]) -> None:
        """Delete objects; those that aren't there count as deleted. When this returns none of them can be read.

        Raises RemoteRefused, RemoteUnavailable; then some may be gone. Repeat it for all of them.
        """

    @abstractmethod
    def names(self) -> Iterator[ObjectName]:
        """All objects, in no order; what isn't named as the store names objects is left out, and left alone.

        One that is put or deleted meanwhile may be among them or not. Raises RemoteRefused, RemoteUnavailable.
        """


# What S3 allows in a bucket's name, and of a prefix what needs no escaping anywhere.
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.\[\]:-]+/?")


@dataclass(frozen=True)
class RemoteSettings:
    """Which remote tier there is. Credentials are no part of it: see `credentials`.

    `endpoint` "" is AWS's own, `region` "" what AWS's environment or configuration says. `timeout` is in seconds, of
    one request.
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
