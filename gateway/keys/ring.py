"""Who shows which key, by the file as it is now."""

import hmac
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from agentmem.errors import Unauthenticated, Unavailable
from agentmem.logs import event
from gateway.callers import Caller, Limits
from gateway.keys import file
from gateway.keys.format import Key, secret_digest, split

log = logging.getLogger(__name__)

DEFAULT_LIMITS: Final = Limits(running=64, per_minute=1200)
"""What a key may ask for where neither the file nor the settings say it."""

_SETTLED_NS: Final = 100_000_000
"""A file changed again within the resolution of its time of change looks unchanged; so a younger one is read again."""
_RETRY_SECONDS: Final = 5.0
_NOBODY: Final = "0" * 64
"""What an unknown key is compared with, so that how long the answer takes doesn't tell which ids there are."""


class KeyRing:
    """Lets in who shows a key of the file at `path`. Event loop only.

    One stat per request (2 µs) sees that the file was changed or replaced, and the request is judged by the new one. A
    file that cannot be read, or is not well-formed, lets nobody in: requests are Unavailable until it is mended, and
    the log says why. What is running then goes on. `default` has the limits of keys that have none of their own.
    """

    def __init__(
        self,
        path: Path,
        default: Limits = DEFAULT_LIMITS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Raises KeyFileError."""
        self._path = path
        self._default = default
        self._now = now
        self._problem = ""
        self._identity: file.Identity | None = None
        self._keys: dict[str, Key] = {}
        self._read()

    def authenticate(self, credential: str | None) -> Caller:
        """The caller whose key `credential` is. Raises Unauthenticated, or Unavailable while the file is unusable."""
        self._refresh()
        if self._problem:
            raise Unavailable("keys cannot be checked now; the gateway's log says why", _RETRY_SECONDS)
        if not credential:
            raise Unauthenticated(
                "no key was sent; send one as `authorization: Bearer KEY`, or over HTTP as `x-api-key: KEY`"
            )
        shown = split(credential)
        key = self._keys.get(shown.id) if shown else None
        expected = bytes.fromhex(key.sha256 if key else _NOBODY)
        same = hmac.compare_digest(secret_digest(shown.secret if shown else ""), expected)
        if key is None or not same or key.expired(self._now()):
            raise Unauthenticated("the key is unknown, expired or revoked; ask for a new one")
        limits = Limits(
            self._default.running if key.max_running is None else key.max_running,
            self._default.per_minute if key.max_per_minute is None else key.max_per_minute,
        )
        return Caller(key.namespace, key.id, key.admin, limits)

    def stands(self, who: Caller) -> bool:
        """Whether the caller's key is in the file, for the same namespace, and has not expired."""
        self._refresh()
        key = self._keys.get(who.key_id)
        return key is not None and key.namespace == who.namespace and not key.expired(self._now())

    def _refresh(self) -> None:
        try:
            found: file.Identity | None = file.identity(os.stat(self._path))
        except OSError:
            found = None
        if found is not None and found == self._identity:
            return
        try:
            self._read()
        except file.KeyFileError as error:
            if self._problem != str(error):
                event(log, "nobody is let in: the keys cannot be read", logging.ERROR, problem=str(error))
            self._problem, self._identity = str(error), None

    def _read(self) -> None:
        keys, read = file.read(self._path)
        if self._identity is not None or self._problem:
            event(log, "keys read again", keys=len(keys))
        self._keys, self._problem = keys, ""
        self._identity = read if abs(time.time_ns() - read.modified_ns) > _SETTLED_NS else None
