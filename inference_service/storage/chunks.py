"""Whole files as the chunks of ReadBlock and WriteBlock."""

from collections.abc import AsyncIterator

import grpc

from agentmem.blockfile import CHUNK_BYTES
from agentmem.v1.cache_store_pb2 import ReadBlockRequest, ReadBlockResponse, WriteBlockHeader, WriteBlockRequest


async def received(call: grpc.aio.UnaryStreamCall[ReadBlockRequest, ReadBlockResponse], size_bytes: int) -> bytes:
    """All bytes of a stream, which is left as soon as it gives more than `size_bytes`. Raises AioRpcError."""
    chunks: list[bytes] = []
    total = 0
    try:
        async for part in call:
            chunks.append(part.chunk)
            total += len(part.chunk)
            if total > size_bytes:
                break
    finally:
        call.cancel()
    return b"".join(chunks)


async def sent(header: WriteBlockHeader, data: bytes) -> AsyncIterator[WriteBlockRequest]:
    """A file's description, then its bytes; the stream's flow control says when the next ones are taken."""
    yield WriteBlockRequest(header=header)
    view = memoryview(data)
    for start in range(0, len(data), CHUNK_BYTES):
        yield WriteBlockRequest(chunk=bytes(view[start : start + CHUNK_BYTES]))
