"""HTTP connections: how many there may be, and how long a peer may send nothing or take nothing.

Closing a transport first waits until the peer has taken what is buffered. So a reader that stalls would hold a socket
and its buffer long after its response was given up, and hold up a shutdown.
"""

import asyncio
import logging
import socket
import ssl
import struct
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentmem.process.logs import event
from gateway.http.framing import StrictConnection
from gateway.http.handshakes import over_tls
from gateway.http.room import FOR_PROBES, Room

log = logging.getLogger(__name__)

SURPLUS: Final = "agentmem.surplus"
"""In the state of a request's scope: its connection is one too many, so it gets a refusal, or its health check."""

HEADER_SECONDS: Final = 10.0
"""Seconds in which a connection has to send the whole of a request's headers."""

IDLE_SECONDS: Final = 75
"""Seconds between two requests of a connection: longer than clients' pools keep theirs. Answers say so."""

_GRACE: Final = 1.0
"""Seconds by which a stream notices a stall before its connection does, and ends the turn with the reason."""

_FIRST_LOOK, _LAST_LOOK, _SLOWER = 0.25, 10.0, 4.0
"""Seconds between two looks at a client that sends no more, and by how many times they grow."""

_RESET: Final = struct.pack("ii", 1, 0)


def connection_type(
    max_connections: int, stall_limit: float, max_head_bytes: int, tls: ssl.SSLContext | None
) -> type[asyncio.Protocol]:
    """Return the protocol that uvicorn makes for each connection.

    A connection over `max_connections` takes the place of a silent one: of the oldest that has never sent a whole
    request, or else of the one that has been idle longest. Where all have requests in service it is refused when it
    asks, unless for its health, and closed at once if there are many of those. One that doesn't send the whole of a
    request's headers within HEADER_SECONDS is closed, and so is one that is idle for IDLE_SECONDS after a request, and
    one whose peer takes no byte of what is sent for `stall_limit` seconds and a little. Headers have `max_head_bytes`
    at most. With `tls` the handshake is silence, and has HEADER_SECONDS, too.
    """

    room = Room(max_connections)

    class Connection(H11Protocol):
        _stall: asyncio.TimerHandle | None = None
        _silence: asyncio.TimerHandle | None = None
        _look: asyncio.TimerHandle | None = None
        _asked = False
        _begun = False

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.conn: StrictConnection = StrictConnection(h11.SERVER, max_head_bytes)

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # Whatever waits pauses writing, so no stall goes unseen. (Under TLS 0 would mean: always.)
            transport.set_write_buffer_limits(high=1, low=0)
            surplus = room.enter(self, self.connections)
            if surplus > FOR_PROBES:
                transport.abort()
                return
            self.app_state: dict[str, Any] = {**self.app_state, SURPLUS: surplus > 0}
            self._watch_silence()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_silence()

        def eof_received(self) -> bool:  # type: ignore[override]
            """Return whether the connection stays open: for the answer to a client that has closed its half only.

            That looks like one that has left. A provisional response tells them apart: who has left answers it by a
            reset, which the next one finds. HTTP/1.0 has none, nor may one follow the beginning of an answer.
            """
            waits = self._serving and not self.cycle.more_body and not self.cycle.response_started
            if not waits or self.scheme == "https" or self.scope["http_version"] == "1.0":
                return False
            self.cycle.keep_alive = False
            self._look_for_client(_FIRST_LOOK)
            return True

        def send_400_response(self, msg: str) -> None:
            if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # a response has begun
                self.transport.close()
                return
            if self.cycle is not None:  # which reads the body, and must not answer, too
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            super().send_400_response(self.conn.fault or msg)

        def on_response_complete(self) -> None:
            self._asked = True
            super().on_response_complete()
            self._watch_silence()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch_stall()

        def resume_writing(self) -> None:
            self._stall = _cancelled(self._stall)
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stall, self._look = _cancelled(self._stall), _cancelled(self._look)
            self._end_silence()
            super().connection_lost(exc)

        @property
        def _serving(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def drop(self) -> None:
            """Close it now."""
            self._end_silence()
            self.transport.abort()

        def _watch_silence(self) -> None:
            if self._serving or self.transport.is_closing():
                self._end_silence()
                return
            begun = not self._asked or self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0])
            if self._silence is not None and (self._begun or not begun):
                return
            _cancelled(self._silence)
            seconds = HEADER_SECONDS if begun else IDLE_SECONDS + _GRACE  # uvicorn closes those that are idle.
            self._silence, self._begun = self.loop.call_later(seconds, self.transport.abort), begun
            room.silent(self, asked=self._asked)

        def _end_silence(self) -> None:
            self._silence = _cancelled(self._silence)
            room.heard(self)

        def _look_for_client(self, again: float) -> None:
            if not self._serving or self.cycle.response_started:
                return
            self.transport.write(self.conn.send(h11.InformationalResponse(status_code=102, headers=[])))
            self._look = self.loop.call_later(again, self._look_for_client, min(again * _SLOWER, _LAST_LOOK))

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

    return Connection if tls is None else over_tls(Connection, room, tls, HEADER_SECONDS)


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None
