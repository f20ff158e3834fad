"""A connection of the HTTP door that does not wait for ever for a peer that takes nothing.

Closing a transport first waits until the peer has taken what is buffered. So a reader that stalls would hold a socket
and its buffer long after its response was given up, and hold up a shutdown.
"""

import asyncio
import logging
import socket
import struct
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from agentmem.logs import event

log = logging.getLogger(__name__)

_GRACE = 1.0
"""Seconds by which a stream notices before its connection does, and ends the turn with the reason."""

_RESET = struct.pack("ii", 1, 0)


class StallingConnection(H11Protocol):
    """uvicorn's protocol, which drops a connection whose peer takes no byte for `stall_limit` seconds and a little."""

    stall_limit: ClassVar[float]
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Whatever waits pauses writing, so no stall goes unseen. (Under TLS 0 would mean: always.)
        transport.set_write_buffer_limits(high=1, low=0)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_again(self._waiting())

    def resume_writing(self) -> None:
        self._look_no_more()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._look_no_more()
        super().connection_lost(exc)

    def _look_again(self, waiting: int) -> None:
        self._look_no_more()
        self._watch = self.loop.call_later(self.stall_limit + _GRACE, self._look, waiting)

    def _look_no_more(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _look(self, before: int) -> None:
        waiting = self._waiting()
        if waiting < before:
            self._look_again(waiting)
            return
        event(log, "stalled connection dropped", waiting_bytes=waiting)
        # By a reset: else the kernel would go on offering what it holds, and the peer take it for a whole answer.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _waiting(self) -> int:
        return self.transport.get_write_buffer_size()
