"""Which connections there may be: silent ones make room for new ones."""

from itertools import chain
from typing import Any, Final, Protocol

FOR_PROBES: Final = 16
"""Connections over the limit that are heard nevertheless: for one request each, a probe, or another that is refused."""


class Silent(Protocol):
    """A connection without a request in service."""

    def drop(self) -> None:
        """Close it now."""


class Room:
    """The connections of one server, of which there should be `most`. Event loop only."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._unheard: dict[Silent, None] = {}
        self._idle: dict[Silent, None] = {}

    def enter(self, connection: Any, connections: set[Any]) -> int:
        """Take a new connection among `connections`; return by how many there are too many then.

        It takes the place of the oldest one that has never sent a whole request, or else of the longest idle.
        """
        connections.add(connection)
        if len(connections) > self._most and (other := next(chain(self._unheard, self._idle), None)) is not None:
            connections.discard(other)  # which it does itself, but later
            other.drop()
        return len(connections) - self._most

    def silent(self, connection: Silent, *, asked: bool) -> None:
        """Note that a connection is silent from now on; `asked` are those that have had an answer."""
        (self._idle if asked else self._unheard)[connection] = None

    def heard(self, connection: Silent) -> None:
        """Note that a connection is silent no more, or is none any more."""
        self._unheard.pop(connection, None)
        self._idle.pop(connection, None)
