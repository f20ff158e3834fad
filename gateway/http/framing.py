"""Where a request ends: what two readers of one connection could see differently is refused.

A proxy that takes another end than the server lets the rest of a body pass as a request of somebody else (request
smuggling). h11 takes some of what RFC 9112 lets a server refuse.
"""

import re
from typing import Final, NoReturn

import h11

_BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_FOLDED: Final = re.compile(rb"\r\n[ \t]")
_FREE_CHUNKS: Final = 1024
_CHUNK_BYTES: Final = 256
"""Bytes that chunks must have on the average, beyond the free ones: each costs the event loop 15 µs."""


class StrictConnection(h11.Connection):
    """The server's side of a connection, which takes one spelling of a request's end only.

    Refused are lines that end in LF alone, folded headers, Content-Length beside Transfer-Encoding, trailers, and
    bodies of very many chunks. Then `next_event` raises RemoteProtocolError, whose words are for the client; the
    connection has to be closed.
    """

    fault = ""
    """Why a request was refused here, for the client."""
    _held = b""
    """Bytes without an event yet, and the four bytes before them."""
    _chunked = False
    _chunks = _bytes = 0

    def receive_data(self, data: bytes) -> None:
        """Take bytes from the client; none at its end."""
        self._held += data
        super().receive_data(data)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event. Raises RemoteProtocolError."""
        if self.their_state is h11.IDLE:
            self._check_lines(self.trailing_data[0].partition(b"\r\n\r\n")[0])
        event = super().next_event()
        if event is h11.NEED_DATA:
            self._held = self._held[-4 - len(self.trailing_data[0]) :]
        match event:
            case h11.Request():
                self._begin(event)
            case h11.Data() if self._chunked:
                self._count(event)
            case h11.EndOfMessage() if self._chunked:
                self._check_end(event)
        return event

    def _begin(self, request: h11.Request) -> None:
        names = {name for name, _ in request.headers}
        self._chunked = b"transfer-encoding" in names
        self._chunks = self._bytes = 0
        if self._chunked and b"content-length" in names:
            self._refuse("send Content-Length or Transfer-Encoding, not both")
        if self._chunked and request.http_version < b"1.1":
            self._refuse("HTTP/1.0 has no Transfer-Encoding; send Content-Length")

    def _count(self, data: h11.Data) -> None:
        self._chunks += data.chunk_start
        self._bytes += len(data.data)
        if self._chunks > _FREE_CHUNKS + self._bytes // _CHUNK_BYTES:
            self._refuse("send the body in larger chunks")

    def _check_end(self, end: h11.EndOfMessage) -> None:
        if end.headers:
            self._refuse("send no trailers after the body")
        if not self._held[: len(self._held) - len(self.trailing_data[0])].endswith(b"\r\n\r\n"):
            self._refuse("end lines with CR LF, not with LF alone")

    def _check_lines(self, head: bytes) -> None:
        if _BARE_LF.search(head):
            self._refuse("end lines with CR LF, not with LF alone")
        if _FOLDED.search(head):
            self._refuse("write each header on one line")

    def _refuse(self, fault: str) -> NoReturn:
        self.fault = fault
        raise h11.RemoteProtocolError(fault)
