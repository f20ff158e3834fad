"""The remote tier in S3, or in what speaks like it: MinIO, Ceph, R2, Garage.

It needs conditional writes (PUT with If-None-Match), and a bucket without versioning. Below the prefix are:

    manifest.json                                               whose the prefix is
    blocks/ab/<chain hash>-<digest>-<generation>.safetensors    by the first byte of the chain hash
    windows/ab/<chain hash>-<digest>-<generation>.safetensors

A namespace is part of the chain hash, so keys don't say whose they are. What no row knows is deleted, so a prefix has
one owner: the data directory or cluster.
"""

import errno
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from agentmem.distribution import install
from agentmem.errors import DataLoss
from agentmem.kv import blockfile
from agentmem.kv.object_location import Location
from cache_service.files.directory import FOLDERS, SUFFIX
from cache_service.files.disk import open_regular
from cache_service.files.publication import Spool
from cache_service.tiers.remote.contract import (
    NotOwner,
    ObjectDamaged,
    ObjectMissing,
    ObjectName,
    RemoteError,
    RemoteRefused,
    RemoteUnavailable,
)

if TYPE_CHECKING:
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import S3Config

FORMAT = 1
MANIFEST = "manifest.json"

_KEY = re.compile(
    rf"(?P<folder>[a-z]+)/(?P<first>[0-9a-f]{{2}})/"
    rf"(?P<chain>(?P=first)[0-9a-f]{{62}})-(?P<digest>[0-9a-f]{{32}})-(?P<generation>[0-9a-f]{{16}})"
    rf"{re.escape(SUFFIX)}"
)
_KINDS = {folder: kind for kind, folder in FOLDERS.items()}
_RETRIES = 3
_FIRST_BACKOFF = timedelta(milliseconds=100)
_LAST_BACKOFF = timedelta(seconds=2)
_CONNECT_SECONDS = 5.0
_CHUNK_BYTES = 1 << 20
_LIST_PAGE = 1000

_UNREADABLE = (errno.EIO, errno.EINVAL, errno.ELOOP)  # of no regular file, too

# Answers without an exception, which no repetition changes.
_REFUSALS = ("NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "InvalidBucketName")
_CODE = re.compile(r"<Code>(\w+)</Code>")


def object_key(name: ObjectName) -> str:
    chain_hash = name.chain_hash.hex()
    return f"{FOLDERS[name.kind]}/{chain_hash[:2]}/{chain_hash}-{name.digest.hex()}-{name.generation}{SUFFIX}"


def object_name(key: str) -> ObjectName | None:
    """Return None if no object of ours has this key."""
    match = _KEY.fullmatch(key)
    if match is None or match["folder"] not in _KINDS:
        return None
    chain_hash, digest = bytes.fromhex(match["chain"]), bytes.fromhex(match["digest"])
    return ObjectName(_KINDS[match["folder"]], chain_hash, digest, match["generation"])


def manifest(owner: str) -> bytes:
    return json.dumps({"format": FORMAT, "owner": owner}).encode()


def owner_of(data: bytes) -> str:
    """Raises NotOwner."""
    try:
        content = json.loads(data)
        version, owner = content["format"], content["owner"]
    except (ValueError, KeyError, TypeError) as error:
        raise NotOwner("its manifest.json is not Agentmem's; choose another prefix") from error
    if version != FORMAT:
        raise NotOwner(f"its objects have format {version}, this program writes {FORMAT}; use a newer agentmem")
    return str(owner)


_IDENTITIES = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")


def _from_files() -> "Boto3CredentialProvider | None":
    """Return the reader of AWS's profiles and logins, if boto3 finds an identity; obstore reads the environment, and
    asks EC2, ECS and EKS. Raises RemoteRefused.
    """
    try:
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        in_files = "AWS_PROFILE" in os.environ or (Path.home() / ".aws" / "credentials").exists()
        if in_files and not any(name in os.environ for name in _IDENTITIES):
            raise RemoteRefused(f"keys in ~/.aws are read by boto3: {install('aws')}") from None
        return None
    try:
        return Boto3CredentialProvider()
    except BotoCoreError as error:
        raise RemoteRefused(str(error)) from error
    except ValueError:  # none found
        return None


class S3Tier:
    """Objects below one prefix. All methods block, on any thread, and may be repeated.

    All raise RemoteRefused and RemoteUnavailable, after seconds of retries.
    """

    def __init__(self, location: Location, endpoint: str, region: str, timeout: float) -> None:
        """Raises RemoteRefused."""
        self.location = f"{location} at {endpoint}" if endpoint else str(location)
        try:
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
                credential_provider=_from_files(),
            )
        except (BaseError, ValueError) as error:
            raise RemoteRefused(f"{self.location}: {_first_line(error)}") from error

    def claim(self, owner: str, *, may_create: bool) -> None:
        """Take the place, if it is empty and `may_create`; of two at once one succeeds. Raises NotOwner."""
        found = self._owner()
        if found is None and may_create:
            try:
                with self._errors("manifest"):
                    obstore.put(self._store, MANIFEST, manifest(owner), mode="create")
            except AlreadyExistsError:
                found = self._owner()
            else:
                return
        if found is None:
            raise NotOwner(
                f"{self.location}: it has no manifest.json; if objects of this data directory are elsewhere,"
                " name that place as --remote, or copy all of it to this one, or give its objects up with"
                " `agentmem store abandon-remote` and delete them there"
            )
        if found != owner:
            raise NotOwner(
                f"{self.location}: it belongs to the store of another data directory; choose another prefix, or,"
                " if that one is gone for good, delete manifest.json there, and its objects become this store's"
            )

    def _owner(self) -> str | None:
        """Return None without a manifest. Read before a write: a server may ignore that a PUT is to create."""
        try:
            with self._errors("manifest"):
                return owner_of(bytes(obstore.get(self._store, MANIFEST).bytes()))
        except ObjectMissing:
            return None
        except NotOwner as error:
            raise NotOwner(f"{self.location}: {error}") from error

    def put(self, name: ObjectName, path: Path) -> None:
        """Upload a file, if the object isn't there. Raises ObjectDamaged, ObjectMissing, OSError if the file cannot be
        opened now. After RemoteUnavailable the object may be there.
        """
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
        """Bring an object to `target`, not fsynced. Raises ObjectMissing, ObjectDamaged, ResourceExhausted,
        Internal.
        """
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
        """Where this raises, some may be gone."""
        with self._errors("deletion"):
            obstore.delete(self._store, [object_key(name) for name in names])

    def names(self) -> Iterator[ObjectName]:
        """Yield all objects, in no order, a page at a time."""
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

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (AlreadyExistsError, RemoteError):
            raise
        except (BaseError, FileNotFoundError) as error:
            raise self._error(doing, error) from None  # the original may hold an access key's id

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
    """The rest is the server's answer, or a dump."""
    return str(error).split("\n", 1)[0].split(": <?xml", 1)[0].split(" Authorization", 1)[0][:300]
