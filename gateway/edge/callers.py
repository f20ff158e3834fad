"""Callers, and how they are authenticated."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True)
class CallerLimits:
    """Requests at once, and a minute. 0: any number."""

    running: int = 0
    per_minute: int = 0

    def overridden(self, running: int | None, per_minute: int | None) -> "CallerLimits":
        return CallerLimits(
            self.running if running is None else running, self.per_minute if per_minute is None else per_minute
        )


@dataclass(frozen=True)
class Caller:
    """`key_id` names the credential. `admin`: it may do what concerns all namespaces."""

    namespace: str
    key_id: str = ""
    admin: bool = False
    limits: CallerLimits = CallerLimits()


class Authenticator(Protocol):
    """Event loop only."""

    def authenticate(self, credential: str | None) -> Caller:
        """Raises Unauthenticated, or Unavailable where it cannot be judged now."""

    def stands(self, who: Caller) -> bool:
        """Return False once a caller's credential is revoked or expired."""


@dataclass(frozen=True)
class Everyone:
    """Lets all in as admins of one namespace."""

    namespace: str
    limits: CallerLimits = CallerLimits()

    def authenticate(self, credential: str | None) -> Caller:  # noqa: ARG002 - SDKs send one, asked or not
        return Caller(self.namespace, admin=True, limits=self.limits)

    def stands(self, who: Caller) -> bool:  # noqa: ARG002 - of whomever
        return True


_CALLER: Final[ContextVar[Caller]] = ContextVar("agentmem.caller")


def caller() -> Caller:
    """Raises LookupError where a server forgot to authenticate."""
    return _CALLER.get()


def serves_admin() -> bool:
    """Return True outside of requests."""
    who = _CALLER.get(None)
    return who is None or who.admin


def serve(who: Caller) -> None:
    """For tasks that begin here, too."""
    _CALLER.set(who)


def bearer_token(authorization: str) -> str | None:
    """Return None where the header shows no token."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
