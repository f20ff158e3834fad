from __future__ import annotations

from typing import Any

import grpc
import pytest

from agentmem.channels import ClientTls, connect
from agentmem.process.server import GrpcServer

KEY = "am_000000000000_canary"
ARITIES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def register(_: Any, server: grpc.aio.Server) -> None:
    """A service whose methods answer with the metadata of the call, one for each arity."""

    def shown(context: Any) -> bytes:
        return repr([tuple(entry) for entry in context.invocation_metadata()]).encode()

    async def one(_: Any, context: Any) -> bytes:
        return shown(context)

    async def many(_: Any, context: Any) -> Any:
        yield shown(context)

    handlers = {
        arity: getattr(grpc, f"{arity}_rpc_method_handler")(many if arity.endswith("stream") else one)
        for arity in ARITIES
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))


@pytest.mark.parametrize("arity", ARITIES)
async def test_a_key_is_shown_with_every_kind_of_call(arity: str) -> None:
    server = GrpcServer("127.0.0.1:0", [("test.Echo", register, None)])
    await server.start()
    try:
        async with connect(f"127.0.0.1:{server.port}", key=KEY) as channel:
            request = iter([b"x"]) if arity.startswith("stream") else b"x"
            call = getattr(channel, arity)(f"/test.Echo/{arity}")(request, metadata=(("x-request-id", "r"),))
            answer = b"".join([part async for part in call]) if arity.endswith("stream") else await call
    finally:
        await server.stop(0)
    assert f"('authorization', 'Bearer {KEY}')".encode() in answer
    assert b"('x-request-id', 'r')" in answer


def test_no_key_is_in_a_repr() -> None:
    assert "canary" not in repr(ClientTls(b"ca", b"cert", b"canary"))
