"""RPCs of any arity, for what forwards or wraps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:  # generic in the stubs only
    _Handler = grpc.RpcMethodHandler[Any, Any]


def arity(request_streaming: bool, response_streaming: bool) -> str:
    """grpc's word for it, such as "unary_stream": what differs by it has it as its name, on channels and handlers."""
    return "_".join("stream" if streaming else "unary" for streaming in (request_streaming, response_streaming))


def maker(arity: str) -> Any:
    """What makes a handler of an arity."""
    return getattr(grpc, f"{arity}_rpc_method_handler")


def parts(handler: _Handler) -> tuple[Any, Any]:
    """What makes a handler of this one's arity, and this one's behaviour."""
    kind = arity(handler.request_streaming, handler.response_streaming)
    return maker(kind), getattr(handler, kind)
