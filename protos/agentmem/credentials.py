"""What a client shows to a gateway that asks for keys or speaks TLS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import grpc

if TYPE_CHECKING:  # generic in the stubs only
    _UnaryUnaryBase = grpc.aio.UnaryUnaryClientInterceptor[Any, Any]
    _UnaryStreamBase = grpc.aio.UnaryStreamClientInterceptor[Any, Any]
    _StreamUnaryBase = grpc.aio.StreamUnaryClientInterceptor[Any, Any]
    _StreamStreamBase = grpc.aio.StreamStreamClientInterceptor[Any, Any]
else:
    _UnaryUnaryBase = grpc.aio.UnaryUnaryClientInterceptor
    _UnaryStreamBase = grpc.aio.UnaryStreamClientInterceptor
    _StreamUnaryBase = grpc.aio.StreamUnaryClientInterceptor
    _StreamStreamBase = grpc.aio.StreamStreamClientInterceptor


@dataclass(frozen=True)
class ClientTls:
    """How a client knows the server, and shows who it is itself. All PEM.

    Without `ca` the authorities are those that gRPC ships with; `cert` and `key` go together.
    """

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)

    def credentials(self) -> grpc.ChannelCredentials:
        """As gRPC takes them."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)


def bearer(key: str) -> Sequence[grpc.aio.ClientInterceptor]:
    """Interceptors that send `key` with every call. gRPC's own call credentials would refuse channels without TLS."""
    show = _Showing(("authorization", f"Bearer {key}"))
    every = (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)
    return [cast("grpc.aio.ClientInterceptor", interceptor(show)) for interceptor in every]


@dataclass(frozen=True)
class _Showing:
    entry: tuple[str, str] = field(repr=False)

    def __call__(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        metadata = grpc.aio.Metadata(*(details.metadata or ()), self.entry)
        return continuation(details._replace(metadata=metadata), request)


@dataclass(frozen=True)
class _Interceptor:
    show: _Showing


# gRPC asks each interceptor for one arity only.


class _UnaryUnary(_Interceptor, _UnaryUnaryBase):
    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self.show(continuation, client_call_details, request)


class _UnaryStream(_Interceptor, _UnaryStreamBase):
    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self.show(continuation, client_call_details, request)


class _StreamUnary(_Interceptor, _StreamUnaryBase):
    async def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await self.show(continuation, client_call_details, request_iterator)


class _StreamStream(_Interceptor, _StreamStreamBase):
    async def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await self.show(continuation, client_call_details, request_iterator)
