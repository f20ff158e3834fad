"""A key as it is shown once, `am_<id>_<secret>`, and as it is kept: its id, its namespace, and a hash of its secret.

The secret is 256 random bits, so nobody can try them all, and SHA-256 is enough: salts and slow hashes are for
passwords, which can be guessed. The file is JSON that people can read:

    {"version": 1, "keys": [{"id": "3f9c…", "namespace": "team-a", "sha256": "9b1e…", "created": "2026-01-31T12:00:00Z",
                             "expires": "2027-01-31T00:00:00Z", "label": "the build server", "admin": false,
                             "max_running": 8, "max_per_minute": 600}]}

What follows `created` may be left out; the two limits then are those of the gateway's settings, and 0 is none.
"""

import hashlib
import json
import secrets
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from agentmem.errors import InvalidArgument
from agentmem.secrecy import SHOWN
from gateway.fields import check_namespace

_PREFIX: Final = "am"
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32


class MalformedKeys(Exception):
    """The text of a key file is not one; the message says where."""


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
        """Whether its time is over."""
        return self.expires is not None and now >= self.expires


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    version: Literal[1]
    keys: list[Key]


def new(namespace: str, created: datetime, **fields: Any) -> tuple[Key, Shown]:
    """A new key and what its owner gets. Raises InvalidArgument that names the field."""
    shown = Shown(secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES))
    digest = secret_digest(shown.secret).hex()
    try:
        return Key(id=shown.id, namespace=namespace, sha256=digest, created=created, **fields), shown
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidArgument(str(first["loc"][0]), first["msg"].removeprefix("Value error, ")) from None


def split(credential: str) -> Shown | None:
    """The parts of a key, or None for what has not the form of one."""
    found = SHOWN.fullmatch(credential)
    return Shown(found[1], found[2]) if found else None


def secret_digest(secret: str) -> bytes:
    """SHA-256 of a secret, 32 bytes."""
    return hashlib.sha256(secret.encode("ascii")).digest()


def parse(text: str) -> dict[str, Key]:
    """The keys of a file by id. Raises MalformedKeys, whose message has no value of the file."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise MalformedKeys(f"is not JSON: {error.msg} at line {error.lineno}") from None
    except (ValueError, RecursionError):
        raise MalformedKeys("is not JSON") from None
    try:
        keys = _File.model_validate(data).keys
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function-"))
        raise MalformedKeys(f"{place or 'the file'}: {first['msg'].removeprefix('Value error, ')}") from None
    by_id = {key.id: key for key in keys}
    if len(by_id) < len(keys):
        raise MalformedKeys("has an id twice")
    return by_id


def render(keys: Iterable[Key]) -> str:
    """The text of a file."""
    listed = [key.model_dump(mode="json", exclude_defaults=True) for key in keys]
    return json.dumps({"version": 1, "keys": listed}, indent=2, ensure_ascii=False) + "\n"
