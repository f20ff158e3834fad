"""The remote tier in S3, or in what speaks like it: MinIO, Ceph, R2, Garage.

It needs conditional writes (PUT with If-None-Match and If-Match), and a bucket without versioning: where old versions
are kept, what was deleted can still be read by who may read the bucket's versions.

Below the prefix are objects, and the manifest that says whose they are:

    manifest.json                                   whose the prefix is
    blocks/ab/<chain hash>-<digest>.safetensors     copies of blocks, by the first byte of their chain hash
    windows/ab/<chain hash>-<digest>.safetensors    copies of windows

and, where the store is one of a cluster's, behind the digest a dash and the generation of the upload.

A namespace is part of the chain hash, so two namespaces never share an object, and keys don't say whose they are. Which
blocks make up an agent is in the database alone.

Rows say which objects may be read, and whatever no row knows is deleted. Two stores on one prefix would delete each
other's objects and, worse, an agent that was erased in one could live on in the other. So a prefix has one owner, the
random id in the data directory's database, and a store that finds another id there refuses to start. The first claim is
a PUT with If-None-Match: of two stores that start at once on an empty prefix, one loses and sees it. That a data
directory was copied, the id does not show: each start also replaces the manifest's `session` with a new random one, by
a PUT with If-Match, and keeps in its database which one it left there. A store that starts from an old copy doesn't
know the present session, and refuses; one that runs while a copy takes over notices before it deletes.
"""

import errno
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from agentmem.errors import DataLoss
from agentmem.kv import blockfile
from agentmem.kv.object_location import Location
from cache_service.files.directory import FOLDERS, SUFFIX
from cache_service.files.disk import open_regular
from cache_service.files.publication import Spool
from cache_service.tiers.remote import credentials
from cache_service.tiers.remote.contract import (
    Claim,
    NotOwner,
    ObjectDamaged,
    ObjectMissing,
    ObjectName,
    RemoteError,
    RemoteRefused,
    RemoteTier,
    RemoteUnavailable,
)

if TYPE_CHECKING:
    from obstore.store import S3Config

FORMAT = 1
MANIFEST = "manifest.json"

_KEY = re.compile(
    rf"(?P<folder>[a-z]+)/(?P<first>[0-9a-f]{{2}})/"
    rf"(?P<chain>(?P=first)[0-9a-f]{{62}})-(?P<digest>[0-9a-f]{{32}})(-(?P<generation>[0-9a-f]{{16}}))?"
    rf"{re.escape(SUFFIX)}"
)
_KINDS = {folder: kind for kind, folder in FOLDERS.items()}
_RETRIES = 3
_FIRST_BACKOFF = timedelta(milliseconds=100)
_LAST_BACKOFF = timedelta(seconds=2)
_CONNECT_SECONDS = 5.0
_CHUNK_BYTES = 1 << 20
_LIST_PAGE = 1000
_CLAIM_ATTEMPTS = 3

_UNREADABLE = (errno.EIO, errno.EINVAL, errno.ELOOP)  # of a disk that fails, and of what is no regular file

# Answers of S3 that come without an exception of their own, and that no repetition changes.
_REFUSALS = ("NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "InvalidBucketName")
_CODE = re.compile(r"<Code>(\w+)</Code>")


def object_key(name: ObjectName) -> str:
    """An object's key."""
    chain_hash = name.chain_hash.hex()
    generation = f"-{name.generation}" if name.generation else ""
    return f"{FOLDERS[name.kind]}/{chain_hash[:2]}/{chain_hash}-{name.digest.hex()}{generation}{SUFFIX}"


def object_name(key: str) -> ObjectName | None:
    """The object that has this key; None if no object of ours has."""
    match = _KEY.fullmatch(key)
    if match is None or match["folder"] not in _KINDS:
        return None
    chain_hash, digest = bytes.fromhex(match["chain"]), bytes.fromhex(match["digest"])
    return ObjectName(_KINDS[match["folder"]], chain_hash, digest, match["generation"] or "")


@dataclass(frozen=True)
class Manifest:
    """Whose a prefix is: which data directory's, and which of its starts came last."""

    owner: str
    session: str

    def to_bytes(self) -> bytes:
        """The object's content."""
        return json.dumps({"format": FORMAT, "owner": self.owner, "session": self.session}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The manifest that this is the content of. Raises NotOwner if no version of ours that we know wrote it."""
        try:
            content = json.loads(data)
            version, owner, session = content["format"], content["owner"], content["session"]
        except (ValueError, KeyError, TypeError) as error:
            raise NotOwner("its manifest.json is not Agentmem's; choose another prefix") from error
        if version != FORMAT:
            raise NotOwner(f"its objects have format {version}, this program writes {FORMAT}; use a newer agentmem")
        return cls(str(owner), str(session))

    def check(self, claim: Claim) -> None:
        """Raise NotOwner unless `claim` may take over from this."""
        if self.owner != claim.owner:
            raise NotOwner(
                "it belongs to the store of another data directory; choose another prefix, or, if that store is gone"
                " for good, delete manifest.json there, and its objects become this store's to delete"
            )
        if self.session not in claim.known | {claim.session}:
            raise NotOwner(
                "another copy of this data directory has used it since; if this is the copy to go on with, delete"
                " manifest.json there, and give the other one another prefix"
            )


class S3Tier(RemoteTier):
    """Objects below one prefix of one bucket, through obstore, which is thread-safe."""

    def __init__(self, location: Location, endpoint: str, region: str, timeout: float) -> None:
        """Raises RemoteRefused if the client can't be made of this."""
        self.location = f"{location} at {endpoint}" if endpoint else str(location)
        try:
            region = region or credentials.region() or ""
            config: S3Config = {}
            if endpoint:
                config["endpoint"] = endpoint
            if region:
                config["region"] = region
            self._store = S3Store(
                location.bucket,
                prefix=location.prefix or None,
                client_options={
                    "allow_http": endpoint.startswith("http://"),
                    "timeout": timedelta(seconds=timeout),
                    "connect_timeout": timedelta(seconds=min(timeout, _CONNECT_SECONDS)),
                },
                retry_config={
                    "max_retries": _RETRIES,
                    "retry_timeout": timedelta(seconds=timeout),
                    "backoff": {"init_backoff": _FIRST_BACKOFF, "max_backoff": _LAST_BACKOFF, "base": 2},
                },
                config=config,
                credential_provider=credentials.from_files(),
            )
        except (BaseError, ValueError) as error:
            raise RemoteRefused(f"{self.location}: {_first_line(error)}") from error

    def claim(self, claim: Claim) -> None:
        """Create the manifest, or replace the one that is known. Who loses a race reads it again, and sees why."""
        for _ in range(_CLAIM_ATTEMPTS):
            found = self._read_manifest()
            if found is not None:
                manifest, e_tag = found
                try:
                    manifest.check(claim)
                except NotOwner as error:
                    raise NotOwner(f"{self.location}: {error}") from error
                if manifest.session == claim.session:
                    return
            elif not claim.may_create:
                raise NotOwner(
                    f"{self.location}: it has no manifest.json; if objects of this data directory are elsewhere,"
                    " name that place as --remote, or copy all of it to this one, or give its objects up with"
                    " `agentmem store abandon-remote` and delete them there"
                )
            content = Manifest(claim.owner, claim.session).to_bytes()
            try:
                with self._errors("manifest"):
                    obstore.put(self._store, MANIFEST, content, mode={"e_tag": e_tag} if found else "create")
            except (AlreadyExistsError, PreconditionError):
                continue
            return
        raise RemoteUnavailable(f"{self.location}: others keep writing its manifest; try again")

    def holds(self, claim: Claim) -> bool:
        """Whether the manifest still has this owner and session."""
        found = self._read_manifest()
        return found is not None and found[0] == Manifest(claim.owner, claim.session)

    def put(self, name: ObjectName, path: Path) -> None:
        """One PUT with If-None-Match; the bytes that were checked are those that are sent."""
        try:
            with open(open_regular(path), "rb") as file:
                data = file.read()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ObjectMissing("the file to upload is gone") from error
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            raise ObjectDamaged(f"this disk cannot read the file to upload ({error.strerror})") from error
        if blockfile.digest(data) != name.digest:
            raise ObjectDamaged("the file to upload is damaged on this disk")
        try:
            with self._errors("upload"):
                obstore.put(self._store, object_key(name), data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return

    def get(self, name: ObjectName, size_bytes: int, target: Path) -> None:
        """One GET, hashed while it is written."""
        spool = Spool(target, size_bytes, name.digest)
        try:
            for chunk in self._chunks(name):
                spool.write(chunk)
            spool.finish()
        except BaseException as error:
            spool.discard()
            if isinstance(error, DataLoss):
                raise ObjectDamaged(f"{self.location}: {object_key(name)} is not what was uploaded") from error
            raise

    def delete(self, names: Sequence[ObjectName]) -> None:
        """In requests of up to a thousand keys."""
        with self._errors("deletion"):
            obstore.delete(self._store, [object_key(name) for name in names])

    def names(self) -> Iterator[ObjectName]:
        """In pages; a page is asked for when it is wanted."""
        for folder in FOLDERS.values():
            pages = obstore.list(self._store, f"{folder}/", chunk_size=_LIST_PAGE)
            while True:
                with self._errors("listing"):
                    page = next(pages, None)
                if page is None:
                    break
                for entry in page:
                    if (name := object_name(entry["path"])) is not None:
                        yield name

    def _chunks(self, name: ObjectName) -> Iterator[bytes]:
        with self._errors("download"):
            yield from obstore.get(self._store, object_key(name)).stream(_CHUNK_BYTES)

    def _read_manifest(self) -> tuple[Manifest, str] | None:
        try:
            with self._errors("manifest"):
                found = obstore.get(self._store, MANIFEST)
                return Manifest.from_bytes(bytes(found.bytes())), found.meta["e_tag"] or ""
        except ObjectMissing:
            return None

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Ours for obstore's. AlreadyExists and Precondition are answers that callers ask for, and pass."""
        try:
            yield
        except (AlreadyExistsError, PreconditionError, RemoteError):
            raise
        except (BaseError, FileNotFoundError) as error:
            raise self._error(doing, error) from None  # the original's text is long, and may hold an access key's id

    def _error(self, doing: str, error: Exception) -> RemoteError:
        code = _CODE.search(str(error))
        problem = f"{self.location}: {doing} failed: {code[1] if code else _first_line(error)}"
        if code is not None and code[1] in _REFUSALS:
            return RemoteRefused(f"{problem}; mend --remote or AWS's credentials")
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError, NotSupportedError)):
            return RemoteRefused(f"{problem}; mend --remote or AWS's credentials")
        if isinstance(error, FileNotFoundError):
            return ObjectMissing(problem)
        return RemoteUnavailable(problem)


def _first_line(error: Exception) -> str:
    """The part of obstore's message that says what happened; the rest is the server's answer, or a dump."""
    return str(error).split("\n", 1)[0].split(": <?xml", 1)[0].split(" Authorization", 1)[0][:300]
