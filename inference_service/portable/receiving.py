"""A portable file as it comes in: the header is judged as soon as it is there, the data is spooled and hashed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import xxhash

from inference_service.portable import header
from inference_service.portable.format import Manifest, damaged
from inference_service.portable.spool import Spool, SpoolFile

_PIECE_BYTES = 4 << 20


@dataclass(frozen=True)
class Received:
    """A file whose every byte was verified: what it says, and its data. Close that."""

    manifest: Manifest
    data: SpoolFile


async def receive(chunks: AsyncIterator[bytes], spool: Spool, judge: Callable[[Manifest], Awaitable[None]]) -> Received:
    """The whole file. `judge` refuses what is not welcome before its data is taken.

    Raises DataLoss for a file that is not as it was exported, FailedPrecondition for another version of the format,
    ResourceExhausted where the disk lacks room, and what `judge` raises. Event loop; files on other threads.
    """
    beginning = bytearray()
    manifest, checksum = await _read_header(chunks, beginning)
    await judge(manifest)
    data = await asyncio.to_thread(spool.file, manifest.data_bytes)
    try:
        await _read_data(chunks, beginning, manifest.data_bytes, checksum, data)
    except BaseException:
        data.close()
        raise
    return Received(manifest, data)


async def _read_header(chunks: AsyncIterator[bytes], beginning: bytearray) -> tuple[Manifest, bytes]:
    """What the header says, and the tensors' checksum; what came behind it stays in `beginning`."""
    size: int | None = None
    async for chunk in chunks:
        beginning += chunk
        if size is None and len(beginning) >= header.LENGTH_BYTES:
            size = header.header_bytes(beginning)
        if size is not None and len(beginning) >= size:
            text = bytes(beginning[header.LENGTH_BYTES : size])
            del beginning[:size]
            return await asyncio.to_thread(header.parse, text)
    raise damaged("it ends inside its header")


async def _read_data(
    chunks: AsyncIterator[bytes], beginning: bytearray, size: int, checksum: bytes, data: SpoolFile
) -> None:
    hasher, written, waiting = xxhash.xxh3_128(), 0, beginning

    def write(piece: bytes) -> None:
        hasher.update(piece)
        data.write(piece, written)

    async for chunk in chunks:
        waiting += chunk
        if written + len(waiting) > size:
            break
        if len(waiting) >= _PIECE_BYTES:
            await asyncio.to_thread(write, bytes(waiting))
            written += len(waiting)
            waiting.clear()
    if written + len(waiting) != size:
        raise damaged("it goes on behind its end" if written + len(waiting) > size else "it ends too early")
    await asyncio.to_thread(write, bytes(waiting))
    if hasher.digest() != checksum:
        raise damaged("the tensors' checksum is another")
