"""Connections of the HTTP door: how many there may be, and how long one may keep silent."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.http.stalls import StallingConnection

SURPLUS: Final = "agentmem.surplus"
"""In the state of a request's scope: its connection is one too many, so it gets a refusal, or its health check."""

_FOR_PROBES: Final = 16
"""Connections over the limit that are heard nevertheless, so that health checks are answered when it is reached."""


def connection_type(max_connections: int, header_timeout: float, stall_seconds: float) -> type[H11Protocol]:
    """What uvicorn makes for each connection.

    A connection over `max_connections` is told so when it asks, and closed at once if there are many of those. One
    that has no request in service and doesn't send a whole one's headers within `header_timeout` seconds is closed, as
    is one whose peer takes nothing of what is sent for `stall_seconds`.
    """

    class Connection(StallingConnection):
        stall_limit = stall_seconds
        _silence: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            surplus = len(self.connections) - max_connections
            if surplus > _FOR_PROBES:
                transport.abort()
                return
            self.app_state: dict[str, Any] = {**self.app_state, SURPLUS: surplus > 0}
            self._watch_silence()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_silence()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch_silence()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_watching()
            super().connection_lost(exc)

        def _watch_silence(self) -> None:
            serving = self.cycle is not None and not self.cycle.response_complete
            if serving or self.transport.is_closing():
                self._stop_watching()
            elif self._silence is None:
                self._silence = self.loop.call_later(header_timeout, self.transport.abort)

        def _stop_watching(self) -> None:
            if self._silence is not None:
                self._silence.cancel()
                self._silence = None

    return Connection
