"""Handlers of RPCs of any arity, for interceptors that wrap them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:  # generic in the stubs only
    _Handler = grpc.RpcMethodHandler[Any, Any]


def parts(handler: _Handler) -> tuple[Any, Any]:
    """What makes a handler of this one's arity, and this one's behaviour."""
    kinds: dict[tuple[bool, bool], tuple[Any, Any]] = {
        (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
        (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
        (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
    }
    return kinds[handler.request_streaming, handler.response_streaming]
