"""Who is calling: found out once, where a call enters a door, and known to all that serves the call."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol

from agentmem.errors import PermissionDenied


@dataclass(frozen=True)
class Limits:
    """What one caller may ask for: requests that run at once, and requests a minute. 0: any number."""

    running: int = 0
    per_minute: int = 0


@dataclass(frozen=True)
class Caller:
    """One caller. `namespace` is the only one that it may touch; `key_id` names the credential, empty without one.

    `admin`: it may do what concerns the callers of all namespaces.
    """

    namespace: str
    key_id: str = ""
    admin: bool = False
    limits: Limits = Limits()


class Authenticator(Protocol):
    """Says who a caller is. Event loop only."""

    def authenticate(self, credential: str | None) -> Caller:
        """The caller who shows `credential`. Raises Unauthenticated, or Unavailable where it cannot be judged now."""

    def stands(self, who: Caller) -> bool:
        """Whether a caller who was let in may go on being served; False once its credential is revoked or expired."""


@dataclass(frozen=True)
class Everyone:
    """Lets everybody in, as callers of one namespace: for doors whose callers are known in another way.

    They may do everything: those whom a loopback address or a client certificate lets in are trusted.
    """

    namespace: str
    limits: Limits = Limits()

    def authenticate(self, credential: str | None) -> Caller:  # noqa: ARG002 - SDKs send one, asked or not
        """The same caller, whatever is shown."""
        return Caller(self.namespace, admin=True, limits=self.limits)

    def stands(self, who: Caller) -> bool:  # noqa: ARG002 - of whomever
        """True."""
        return True


_CALLER: Final[ContextVar[Caller]] = ContextVar("agentmem.caller")


def caller() -> Caller:
    """Who is being served. LookupError where nobody was let in, which is a mistake of the door's."""
    return _CALLER.get()


def serves_admin() -> bool:
    """Whether the caller who is being served is an admin; true where nobody is."""
    who = _CALLER.get(None)
    return who is None or who.admin


def serve(who: Caller) -> None:
    """From here on, and in tasks that begin here, `who` is being served."""
    _CALLER.set(who)


def require_admin(who: Caller) -> None:
    """Raises PermissionDenied unless `who` may do what concerns everybody."""
    if not who.admin:
        raise PermissionDenied(
            "this concerns the callers of all namespaces, so it needs a key with admin = true; "
            "`agentmem keys create --admin` makes one"
        )


def bearer_token(authorization: str) -> str | None:
    """The token of an Authorization header or metadatum; None where it shows none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
