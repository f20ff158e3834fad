"""An agent's file, streamed from the worker to a caller and back, never held whole."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any, Final
from urllib.parse import quote

import grpc
from starlette.requests import Request
from starlette.types import Send

from agentmem.blockfile import CHUNK_BYTES
from agentmem.uploads import read_on
from agentmem.v1 import agent_pb2
from gateway import upstream
from gateway.http.disconnects import until_disconnect
from gateway.http.requests import limited
from gateway.http.responses import StreamedResponse

FILE_TYPE: Final = "application/octet-stream"

_CHUNKS_AHEAD: Final = 8


async def send_file(
    call: upstream.StreamCall[agent_pb2.ExportAgentResponse], agent: str, send: Send, stall_limit: float
) -> None:
    """Answer with the file that ExportAgent streams.

    Raises AgentmemError where it fails, ReaderStalled included: before the first chunk nothing was sent, and after it
    the response is left without an end, so that nobody takes a part for the whole.
    """
    async with upstream.read_ahead(call, _CHUNKS_AHEAD) as chunks:
        first = await anext(chunks, None)
        response = StreamedResponse(send, stall_limit)
        name = quote(f"{agent}.safetensors", safe="")
        await response.start(
            [("content-type", FILE_TYPE), ("content-disposition", f"attachment; filename*=UTF-8''{name}")]
        )
        if first is not None:
            await response.write(first.chunk)
        async for one in chunks:
            await response.write(one.chunk)
        await response.end()


async def take_file(
    connect: Callable[[], Any], target: agent_pb2.ImportAgentRequest, request: Request, limit: int
) -> agent_pb2.ImportAgentResponse:
    """The agent that ImportAgent makes of the request's body, whose `target` is known.

    Raises AgentmemError as the worker refuses it, HTTPException for another content type and for more than `limit`
    bytes, and ClientDisconnect where the caller goes away, which cancels the import.
    """
    body = limited(request, FILE_TYPE, limit)
    pieces = _pieces(body)
    first = await anext(pieces, b"")  # nothing is begun for a body that is refused by its headers
    call = connect()
    try:
        await call.write(target)
        if first:
            await call.write(agent_pb2.ImportAgentRequest(chunk=first))
        async for piece in pieces:
            await call.write(agent_pb2.ImportAgentRequest(chunk=piece))
        await call.done_writing()
    except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
        await read_on(body)  # the worker has ended the call, and its status says why
    except BaseException:
        call.cancel()
        raise
    made: agent_pb2.ImportAgentResponse = await until_disconnect(request.receive, upstream.result(call))
    return made


async def _pieces(body: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The body in pieces of CHUNK_BYTES bytes; the last one may be shorter."""
    held = bytearray()
    async for data in body:
        held += data
        while len(held) >= CHUNK_BYTES:
            yield bytes(held[:CHUNK_BYTES])
            del held[:CHUNK_BYTES]
    if held:
        yield bytes(held)
