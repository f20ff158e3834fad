"""TLS connections in their handshake, which count as connections: silent ones, until they are made."""

import asyncio
import ssl
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.http.room import FOR_PROBES, Room


def over_tls(plain: type[H11Protocol], room: Room, context: ssl.SSLContext, seconds: float) -> type[asyncio.Protocol]:
    """Return the protocol of each TCP connection, which becomes one of `plain` after a handshake of some `seconds`."""

    class Handshake(asyncio.Protocol):
        _transport: asyncio.Transport
        _early = b""
        _made = False

        def __init__(self, **given: Any) -> None:
            self._plain = plain(**given)
            self._connections: set[Any] = given["server_state"].connections

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            transport.pause_reading()  # until TLS reads
            self._transport = transport
            if room.enter(self, self._connections) > FOR_PROBES:
                self.drop()
                return
            room.silent(self, asked=False)
            self._shaking = asyncio.get_running_loop().create_task(self._shake())

        def data_received(self, data: bytes) -> None:
            self._early += data  # it may come with the end of the handshake

        def connection_lost(self, exc: Exception | None) -> None:
            self._leave()
            if self._made:
                self._plain.connection_lost(exc)

        def drop(self) -> None:
            """Close it now."""
            self._leave()
            self._transport.abort()

        shutdown = drop  # as uvicorn calls it when it ends

        def _leave(self) -> None:
            room.heard(self)
            self._connections.discard(self)

        async def _shake(self) -> None:
            loop = asyncio.get_running_loop()
            try:
                secure = await loop.start_tls(
                    self._transport, self, context, server_side=True, ssl_handshake_timeout=seconds
                )
            except OSError:  # TLS's errors among them
                return
            finally:
                self._leave()
            if secure is None or secure.is_closing():  # closed meanwhile
                return
            self._made = True
            secure.set_protocol(self._plain)
            self._plain.connection_made(secure)
            if self._early:
                self._plain.data_received(self._early)

    return Handshake
