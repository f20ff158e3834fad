"""A key as it is shown once, `am_<id>_<secret>`, and as it is kept.

The secret is 256 random bits, so SHA-256 is enough: slow hashes are for passwords, which can be guessed.
"""

import hashlib
import secrets
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from agentmem.errors import InvalidArgument
from agentmem.tracing import SHOWN
from gateway.edge.authorization import check_namespace

_PREFIX: Final = "am"
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32


class Shown(NamedTuple):
    id: str
    secret: str

    def __str__(self) -> str:
        return f"{_PREFIX}_{self.id}_{self.secret}"


class ApiKey(BaseModel):
    """Times have a zone."""

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
        return self.expires is not None and now >= self.expires


def new(namespace: str, created: datetime, **fields: Any) -> tuple[ApiKey, Shown]:
    """Return the key as it is kept and as it is shown. Raises InvalidArgument that names the field."""
    shown = Shown(secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES))
    digest = secret_digest(shown.secret).hex()
    try:
        return ApiKey(id=shown.id, namespace=namespace, sha256=digest, created=created, **fields), shown
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidArgument(str(first["loc"][0]), first["msg"].removeprefix("Value error, ")) from None


def split(credential: str) -> Shown | None:
    """Return None for what has not the form of a key."""
    found = SHOWN.fullmatch(credential)
    return Shown(found[1], found[2]) if found else None


def secret_digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("ascii")).digest()
