"""Where the key that a caller sends is checked."""

import hmac
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol

from agentmem.errors import Unauthenticated, Unavailable
from gateway.edge.callers import Caller, CallerLimits
from gateway.edge.keys import ApiKey, secret_digest, split

DEFAULT_LIMITS: Final = CallerLimits(running=64, per_minute=1200)
"""Where neither the key nor the settings say them."""

_RETRY_SECONDS: Final = 5.0


class Known(NamedTuple):
    """Not `is_current`: the keys may have been changed since."""

    keys: Mapping[str, ApiKey]
    is_current: bool


class KeySource(Protocol):
    """Event loop only."""

    def look(self) -> Known:
        """Called for each request; raises nothing."""


class KeyRing:
    """Lets in who shows a key of `source`. Event loop only.

    While the keys are not current requests are Unavailable, and what is running goes on, unless the keys that were read
    last say that it must end.
    """

    def __init__(
        self,
        source: KeySource,
        default: CallerLimits = DEFAULT_LIMITS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._source = source
        self._default = default
        self._now = now

    def authenticate(self, credential: str | None) -> Caller:
        """Raises Unauthenticated, Unavailable."""
        known = self._source.look()
        if not known.is_current:
            raise Unavailable("keys cannot be checked now; the gateway's log says why", _RETRY_SECONDS)
        if not credential:
            raise Unauthenticated(
                "no key was sent; send one as `authorization: Bearer KEY`, or over HTTP as `x-api-key: KEY`"
            )
        shown = split(credential)
        key = known.keys.get(shown.id) if shown else None
        same = shown and key and hmac.compare_digest(secret_digest(shown.secret), bytes.fromhex(key.sha256))
        if not key or not same or key.expired(self._now()):
            raise Unauthenticated("the key is unknown, expired or revoked; ask for a new one")
        limits = self._default.overridden(key.max_running, key.max_per_minute)
        return Caller(key.namespace, key.id, key.admin, limits)

    def stands(self, who: Caller) -> bool:
        key = self._source.look().keys.get(who.key_id)
        return key is not None and key.namespace == who.namespace and not key.expired(self._now())
