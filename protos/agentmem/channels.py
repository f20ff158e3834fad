"""Channels between the processes: limits, keepalive, tracing, and an authority that every HTTP/2 server accepts.

Both ends take the same options from here, so that message sizes and keepalive agree.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc

from agentmem.credentials import ClientTls, bearer
from agentmem.traced_calls import TracedChannel

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Ledgers of a few hundred thousand tokens fit; KV never travels in one message."""

MAX_METADATA_BYTES = 16 * 1024
"""Of one call, all names and values together; a call with more is refused. grpc's 8 KiB are W3C's baggage alone."""

_T = TypeVar("_T")

_COMMON: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),  # between the two, grpc refuses at random
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]

SERVER_OPTIONS: list[tuple[str, int | str]] = [
    *_COMMON,
    # A client that vanished without closing is noticed by our pings; a client that pings as often as ours is welcome.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
]

CLIENT_OPTIONS: list[tuple[str, int | str]] = [
    *_COMMON,
    # A peer that was restarted is found again at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # This is how long an attempt may take, whatever its name says; 100 ms are too few for a busy machine.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


def connect(target: str, *, key: str = "", tls: ClientTls | None = None) -> grpc.aio.Channel:
    """A channel to `target` ("unix:/path" or "host:port"). It connects, and reconnects, by itself.

    Its calls carry the request that they are made for (`agentmem.tracing`), and show `key`, if there is one. Without
    `tls` a key goes in clear text.
    """
    options = list(CLIENT_OPTIONS)
    if target.startswith("unix:"):
        # grpc-core would send the percent-encoded path, which tonic and others reject.
        options.append(("grpc.default_authority", "localhost"))
    interceptors = bearer(key) if key else []
    if tls is None:
        return TracedChannel(grpc.aio.insecure_channel(target, options=options, interceptors=interceptors))
    return TracedChannel(grpc.aio.secure_channel(target, tls.credentials(), options=options, interceptors=interceptors))


@asynccontextmanager
async def closing_stream(call: "grpc.aio.UnaryStreamCall[Any, _T]") -> AsyncIterator["AsyncIterator[_T]"]:
    """Iterate a server stream so that leaving early cancels it; without that the server streams for ever."""
    try:
        yield call.__aiter__()
    finally:
        call.cancel()
