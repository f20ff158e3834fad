"""Who is calling: found out once, where a call enters a door, and known to all that serves the call."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True)
class Caller:
    """One caller. `namespace` is the only one that it may touch; `key_id` names the credential, empty without one."""

    namespace: str
    key_id: str = ""


class Authenticator(Protocol):
    """Says who a caller is. Event loop only."""

    def authenticate(self, credential: str | None) -> Caller:
        """The caller who shows `credential`. Raises Unauthenticated."""


@dataclass(frozen=True)
class Everyone:
    """Lets everybody in, as callers of one namespace: for doors that only this machine can reach."""

    namespace: str

    def authenticate(self, credential: str | None) -> Caller:  # noqa: ARG002 - SDKs send one, asked or not
        """The same caller, whatever is shown."""
        return Caller(self.namespace)


_CALLER: Final[ContextVar[Caller]] = ContextVar("agentmem.caller")


def caller() -> Caller:
    """Who is being served. LookupError where nobody was let in, which is a mistake of the door's."""
    return _CALLER.get()


def serve(who: Caller) -> None:
    """From here on, and in tasks that begin here, `who` is being served."""
    _CALLER.set(who)
