"""Channels with keys, TLS, limits, keepalive and tracing. Both ends take their options from here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from agentmem import tracing
from agentmem.addresses import grpc_target


@dataclass(frozen=True)
class ClientTls:
    """PEM; without `ca` gRPC's own authorities."""

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)


MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Enough for ledgers of a few hundred thousand tokens; KV is sent in pieces."""

MAX_METADATA_BYTES = 16 * 1024
"""W3C baggage alone may take gRPC's default of 8 KiB."""

IDLE_SECONDS = 600.0

_LAST_CALL_SECONDS = 86_400.0
"""For calls on a closing channel, such as following a workflow run."""

_T = TypeVar("_T")

_COMMON: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),  # between the two, grpc refuses at random
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Else gRPC (1.85) waits a minute for a ping's answer, whatever keepalive says.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]

SERVER_OPTIONS: list[tuple[str, int | str]] = [
    *_COMMON,
    # Our pings notice a client that vanished; a client may ping as often.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
]

CLIENT_OPTIONS: list[tuple[str, int | str]] = [
    *_COMMON,
    ("grpc.initial_reconnect_backoff_ms", 100),
    # The limit for one attempt, despite its name; 100 ms are too few for a busy machine.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]

NODE_OPTIONS: dict[str, int | str] = {
    # Shorter than the ten seconds of a node's lease.
    "grpc.keepalive_time_ms": 5_000,
    "grpc.keepalive_timeout_ms": 5_000,
    "grpc.http2.ping_timeout_ms": 5_000,
}

DOOR_OPTIONS: dict[str, int | str] = {**NODE_OPTIONS, "grpc.http2.min_ping_interval_without_data_ms": 2_500}


def connect(
    target: str, *, key: str = "", tls: ClientTls | None = None, options: Mapping[str, int | str] | None = None
) -> grpc.aio.Channel:
    """Return a channel to "unix:/path" or "host:port", which connects and reconnects by itself.

    Calls carry the current trace and `key`. `options` override CLIENT_OPTIONS.
    """
    given = {**dict(CLIENT_OPTIONS), **(options or {})}
    if target.startswith("unix:"):
        # grpc-core would send the percent-encoded path, which tonic and others reject.
        given["grpc.default_authority"] = "localhost"
    options_list = list(given.items())
    if tls is None:
        return TracedChannel(grpc.aio.insecure_channel(grpc_target(target), options=options_list), key)
    return TracedChannel(grpc.aio.secure_channel(grpc_target(target), tls.credentials(), options=options_list), key)


@asynccontextmanager
async def closing_stream(call: grpc.aio.UnaryStreamCall[Any, _T]) -> AsyncIterator[AsyncIterator[_T]]:
    try:
        yield call.__aiter__()
    finally:
        call.cancel()


class ChannelsByAddress:
    """Channels to nodes, closed after IDLE_SECONDS without use. Event loop only."""

    def __init__(self, connect: Callable[[str], grpc.aio.Channel]) -> None:
        self._connect = connect
        self._used: dict[str, tuple[grpc.aio.Channel, float]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def to(self, address: str) -> grpc.aio.Channel:
        now = time.monotonic()
        channel = self._used[address][0] if address in self._used else self._connect(address)
        self._used[address] = channel, now
        for idle in [each for each, (_, used) in self._used.items() if used < now - IDLE_SECONDS]:
            closing = asyncio.create_task(self._used.pop(idle)[0].close(_LAST_CALL_SECONDS))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        return channel

    async def close(self) -> None:
        for closing in self._closing:
            closing.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await asyncio.gather(*(channel.close(None) for channel, _ in self._used.values()))


class TracedChannel(grpc.aio.Channel):
    """A channel whose calls carry trace and `key`; a call's own metadata take precedence.

    gRPC's call credentials refuse channels without TLS, and its interceptors return calls that behave differently.
    """

    def __init__(self, channel: grpc.aio.Channel, key: str = "") -> None:
        self._channel = channel
        self._credential = (("authorization", f"Bearer {key}"),) if key else ()

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._carrying(self._channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._carrying(self._channel.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._carrying(self._channel.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._carrying(self._channel.stream_stream(*args, **kwargs))

    async def __aenter__(self) -> TracedChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(None)

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    def _carrying(self, method: Any) -> Any:
        def call(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
            given = tuple(metadata or ())
            names = {name for name, _ in given}
            trace = tracing.current()
            carried = () if trace is None else trace.metadata
            more = (*self._credential, *(pair for pair in carried if pair[0] not in names))
            return method(*args, metadata=(*given, *more) if more else metadata, **kwargs)

        return call
