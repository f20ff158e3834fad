"""Closing a transport waits until the peer has taken what is buffered, so a reader that stalls would hold a socket, its
buffer and a shutdown.
"""

import asyncio
import logging
import socket
import struct
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from agentmem.process.logs import event

log = logging.getLogger(__name__)

SURPLUS: Final = "agentmem.surplus"
"""In the state of a request's scope: its connection is one too many."""

FOR_PROBES: Final = 16
"""Connections over the limit that are heard for one request each."""

HEADER_SECONDS: Final = 10.0
"""Seconds for the whole of a request's headers."""

MAX_HEADER_BYTES: Final = 16 * 1024
"""Headers of HTTP, and metadata of gRPC."""

IDLE_SECONDS: Final = 75
"""Seconds between two requests of a connection: longer than clients' pools keep theirs."""

_GRACE: Final = 1.0
"""Seconds by which a stream notices a stall before its connection does, and ends the turn with the reason."""

_RESET: Final = struct.pack("ii", 1, 0)


def connection_type(max_connections: int, stall_limit: float) -> type[asyncio.Protocol]:
    """Return the protocol that uvicorn makes for each connection.

    A connection over `max_connections` takes the place of the one that has had no request for longest. Where all have
    requests in service it is refused when it asks, unless for its health, and closed at once if there are many of
    those. Closed, too, is one without all headers after HEADER_SECONDS, or whose peer takes no byte for `stall_limit`
    seconds.
    """

    class Connection(H11Protocol):
        _stall: asyncio.TimerHandle | None = None
        _silence: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # Whatever waits pauses writing, so no stall goes unseen. (Under TLS 0 would mean: always.)
            transport.set_write_buffer_limits(high=1, low=0)
            self._silent_since = self.loop.time()
            there: set[Any] = self.connections
            silent = [one for one in there if one is not self and not one.serving]
            if len(there) > max_connections and silent:
                longest = min(silent, key=lambda one: one._silent_since)
                there.discard(longest)  # which it does itself, but later
                longest.transport.abort()
            surplus = len(there) - max_connections
            if surplus > FOR_PROBES:
                transport.abort()
                return
            self.app_state: dict[str, Any] = {**self.app_state, SURPLUS: surplus > 0}
            self._expect_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.serving:
                self._silence = _cancelled(self._silence)
            elif self._silence is None:
                self._expect_headers()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._silent_since = self.loop.time()
            if not self.serving and (self.cycle.more_body or self.conn.trailing_data[0]):
                self._expect_headers()  # uvicorn's own limit is for those that are idle

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch_stall()

        def resume_writing(self) -> None:
            self._stall = _cancelled(self._stall)
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stall, self._silence = _cancelled(self._stall), _cancelled(self._silence)
            super().connection_lost(exc)

        @property
        def serving(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _expect_headers(self) -> None:
            _cancelled(self._silence)
            self._silence = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

        def _watch_stall(self) -> None:
            _cancelled(self._stall)
            waiting = self.transport.get_write_buffer_size()
            self._stall = self.loop.call_later(stall_limit + _GRACE, self._check_stall, waiting)

        def _check_stall(self, before: int) -> None:
            waiting = self.transport.get_write_buffer_size()
            if waiting < before:
                self._watch_stall()
                return
            event(log, "stalled connection dropped", waiting_bytes=waiting)
            # By a reset: else the kernel would go on offering what it holds, and the peer take it for a whole answer.
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()

    return Connection


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None
