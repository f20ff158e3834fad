"""A key as it is shown once, `am_<id>_<secret>`, and as it is kept: its id, its namespace, and a hash of its secret.

The secret is 256 random bits, which are too many to try, and SHA-256 is enough: salts and slow hashes are for
passwords, which can be guessed. The file is JSON that people can read:

    {"version": 1, "keys": [{"id": "3f9c…", "namespace": "team-a", "sha256": "9b1e…", "created": "2026-01-31T12:00:00Z",
                             "expires": "2027-01-31T00:00:00Z", "label": "the build server", "admin": false,
                             "max_running": 8, "max_per_minute": 600}]}

What follows `created` may be left out; the two limits then are those of the gateway's settings, and 0 is none.

The file is for its owner alone, replaced whole, and changed by one program at a time.
"""

import fcntl
import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from agentmem.diagnostics import Diagnostic, FileError
from agentmem.errors import InvalidArgument, Unauthenticated, Unavailable
from agentmem.logs import event
from agentmem.tracing import SHOWN
from gateway.edge.authorization import check_namespace
from gateway.edge.callers import Caller, CallerLimits

_PREFIX: Final = "am"
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32


class Shown(NamedTuple):
    """A key in the parts that its owner has."""

    id: str
    secret: str

    def __str__(self) -> str:
        return f"{_PREFIX}_{self.id}_{self.secret}"


class Key(BaseModel):
    """A key as it is kept. Times have a zone."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    id: str = Field(pattern=f"^[0-9a-f]{{{2 * _ID_BYTES}}}$")
    namespace: Annotated[str, AfterValidator(check_namespace)]
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    created: AwareDatetime
    expires: AwareDatetime | None = None
    label: str = ""
    admin: bool = False
    max_running: int | None = Field(None, ge=0)
    max_per_minute: int | None = Field(None, ge=0)

    def expired(self, now: datetime) -> bool:
        """Return whether its time is over."""
        return self.expires is not None and now >= self.expires


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    version: Literal[1]
    keys: list[Key]


def new(namespace: str, created: datetime, **fields: Any) -> tuple[Key, Shown]:
    """Return a new key and what its owner gets. Raises InvalidArgument that names the field."""
    shown = Shown(secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES))
    digest = secret_digest(shown.secret).hex()
    try:
        return Key(id=shown.id, namespace=namespace, sha256=digest, created=created, **fields), shown
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidArgument(str(first["loc"][0]), first["msg"].removeprefix("Value error, ")) from None


def split(credential: str) -> Shown | None:
    """Return the parts of a key, or None for what has not the form of one."""
    found = SHOWN.fullmatch(credential)
    return Shown(found[1], found[2]) if found else None


def secret_digest(secret: str) -> bytes:
    """Return the SHA-256 of a secret, 32 bytes."""
    return hashlib.sha256(secret.encode("ascii")).digest()


def parse(path: Path, text: str) -> dict[str, Key]:
    """Return the keys of the file's text by id. Raise FileError, whose message has no value of the file."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(path, Diagnostic("", f"is not JSON: {error.msg}", error.lineno, error.colno)) from None
    except (ValueError, RecursionError):
        raise FileError(path, "is not JSON") from None
    try:
        keys = _File.model_validate(data).keys
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        places = [".".join(str(part) for part in one["loc"] if not str(part).startswith("function-")) for one in found]
        said = [one["msg"].removeprefix("Value error, ") for one in found]
        raise FileError(path, *map(Diagnostic, places, said)) from None
    by_id = {key.id: key for key in keys}
    if len(by_id) < len(keys):
        raise FileError(path, "has an id twice")
    return by_id


def render(keys: Iterable[Key]) -> str:
    """Return the text of a file."""
    listed = [key.model_dump(mode="json", exclude_defaults=True) for key in keys]
    return json.dumps({"version": 1, "keys": listed}, indent=2, ensure_ascii=False) + "\n"


_OTHERS = stat.S_IRWXG | stat.S_IRWXO


Identity = tuple[int, ...]
"""What differs once a file was changed or replaced: its time of change in ns, device, inode, size and mode."""


def identity(found: os.stat_result) -> Identity:
    """Return the identity of a file, from its stat."""
    return found.st_mtime_ns, found.st_dev, found.st_ino, found.st_size, found.st_mode


def read(path: Path) -> tuple[dict[str, Key], Identity]:
    """Return the keys by id, and the identity of the file that has them. Raises FileError."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read()
    except FileNotFoundError:
        raise FileError(path, f"does not exist; `agentmem keys create --keys {path}` makes it") from None
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror}") from error
    if found.st_mode & _OTHERS:
        raise FileError(path, f"is open to others (mode {found.st_mode & 0o777:03o}); run: chmod 600 {path}")
    try:
        return parse(path, data.decode("utf-8")), identity(found)
    except UnicodeDecodeError:
        raise FileError(path, "is not UTF-8") from None


@contextmanager
def changing(path: Path) -> Iterator[dict[str, Key]]:
    """Yield the keys by id, to be changed in the block; written when it ends well. An absent file has none.

    Others that want to change them wait. Readers see the keys of before or those of after. Raises FileError.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FileError(path.parent, f"cannot be written to: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keys = read(path)[0] if path.exists() else {}
        yield keys
        _replace(path, render(keys.values()))
    finally:
        os.close(lock)


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise FileError(path, f"cannot be written: {error.strerror}") from error


log = logging.getLogger(__name__)

DEFAULT_LIMITS: Final = CallerLimits(running=64, per_minute=1200)
"""What a key may ask for where neither the file nor the settings say it."""

_SETTLED_NS: Final = 100_000_000
"""A file changed again within the resolution of its time of change looks unchanged; so a younger one is read again."""
_RETRY_SECONDS: Final = 5.0
_NO_DIGEST: Final = "0" * 64
"""What an unknown key is compared with, so that the time of the answer doesn't show which ids there are."""


class KeyRing:
    """Lets in who shows a key of the file at `path`. Event loop only.

    One stat per request (2 µs) sees that the file was changed or replaced, and the request is judged by the new one. A
    file that cannot be read, or is not well-formed, lets no one in: requests are Unavailable until it is mended, and
    the log says why. What is running then goes on. `default` has the limits of keys that have none of their own.
    """

    def __init__(
        self,
        path: Path,
        default: CallerLimits = DEFAULT_LIMITS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Raise FileError."""
        self._path = path
        self._default = default
        self._now = now
        self._problem = ""
        self._identity: Identity | None = None
        self._keys: dict[str, Key] = {}
        self._read()

    def authenticate(self, credential: str | None) -> Caller:
        """Return whose key `credential` is. Raises Unauthenticated, or Unavailable while the file is unusable."""
        self._refresh()
        if self._problem:
            raise Unavailable("keys cannot be checked now; the gateway's log says why", _RETRY_SECONDS)
        if not credential:
            raise Unauthenticated(
                "no key was sent; send one as `authorization: Bearer KEY`, or over HTTP as `x-api-key: KEY`"
            )
        shown = split(credential)
        key = self._keys.get(shown.id) if shown else None
        expected = bytes.fromhex(key.sha256 if key else _NO_DIGEST)
        same = hmac.compare_digest(secret_digest(shown.secret if shown else ""), expected)
        if key is None or not same or key.expired(self._now()):
            raise Unauthenticated("the key is unknown, expired or revoked; ask for a new one")
        limits = self._default.overridden(key.max_running, key.max_per_minute)
        return Caller(key.namespace, key.id, key.admin, limits)

    def stands(self, who: Caller) -> bool:
        """Return whether the caller's key is in the file, for the same namespace, and has not expired."""
        self._refresh()
        key = self._keys.get(who.key_id)
        return key is not None and key.namespace == who.namespace and not key.expired(self._now())

    def _refresh(self) -> None:
        try:
            found: Identity | None = identity(os.stat(self._path))
        except OSError:
            found = None
        if found is not None and found == self._identity:
            return
        try:
            self._read()
        except FileError as error:
            if self._problem != str(error):
                event(log, "the keys cannot be read, so every request is refused", logging.ERROR, problem=str(error))
            self._problem, self._identity = str(error), None

    def _read(self) -> None:
        keys, identity = read(self._path)
        if self._identity is not None or self._problem:
            event(log, "keys read again", keys=len(keys))
        self._keys, self._problem = keys, ""
        self._identity = identity if abs(time.time_ns() - identity[0]) > _SETTLED_NS else None
