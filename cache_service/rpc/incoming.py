"""What a WriteBlock stream says: what comes first, then its bytes, in the order and sizes of the contract."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from agentmem.blockfile import CHUNK_BYTES
from agentmem.errors import DeadlineExceeded, InvalidArgument
from agentmem.v1 import cache_store_pb2
from agentmem.validation import AgentKey, check_text
from cache_service.files.publication import Publication
from cache_service.files.references import FileRow
from cache_service.rpc import conversions

MAX_FILE_BYTES = 1 << 32
IDLE_SECONDS = 60.0
"""A writer that says nothing for so long is sent away: what it has sent so far takes up the disk."""

Requests = AsyncIterator[cache_store_pb2.WriteBlockRequest]


async def described(requests: Requests) -> tuple[FileRow, Publication]:
    """The file that the stream begins to describe, and its publication, in which it is not yet. As `chunks` raises."""
    first = await _next(requests)
    if first is None or not first.HasField("header"):
        raise InvalidArgument("header", "must be what the stream begins with")
    header = first.header
    if header.file.size_bytes > MAX_FILE_BYTES:
        raise InvalidArgument("header.file.size_bytes", f"must be at most {MAX_FILE_BYTES}")
    return conversions.file_row("header.file", header.file), Publication(
        key=AgentKey.from_proto(header.key, anonymous=True),
        version=conversions.version("header.version", header.version),
        staged=(),
        references=None,
        fingerprint=check_text("header.fingerprint", header.fingerprint),
    )


async def chunks(requests: Requests) -> AsyncGenerator[bytes, None]:
    """The bytes that follow it. Raises InvalidArgument, DeadlineExceeded."""
    while (request := await _next(requests)) is not None:
        if not request.HasField("chunk"):
            raise InvalidArgument("chunk", "must be what follows the header")
        if len(request.chunk) > CHUNK_BYTES:
            raise InvalidArgument("chunk", f"must be at most {CHUNK_BYTES} bytes")
        yield request.chunk


async def _next(requests: Requests) -> cache_store_pb2.WriteBlockRequest | None:
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            return await anext(requests, None)
    except TimeoutError as error:
        raise DeadlineExceeded(f"nothing came for {IDLE_SECONDS:.0f} s; send the file again") from error
