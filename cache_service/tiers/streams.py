"""Files of KV as streams, between the nodes of a cluster. A caller may go away at any moment."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from agentmem.errors import NotFound
from agentmem.kv.blockfile import CHUNK_BYTES, FileName
from agentmem.tracing import Threads
from cache_service.files import references
from cache_service.files.directory import DataDirectory
from cache_service.files.publication import Publication, Spool, Staged, pieces
from cache_service.files.references import FileRow
from cache_service.tiers.blocks import BlockStore
from cache_service.tiers.warm_rows import WarmRows

_T = TypeVar("_T")


@dataclass(eq=False)
class BlockStreams:
    """Use from one event loop; close it before the BlockStore."""

    _directory: DataDirectory
    _rows: WarmRows
    _blocks: BlockStore

    def __post_init__(self) -> None:
        self._reading = Threads(1, thread_name_prefix="stream reads")
        self._writing = Threads(1, thread_name_prefix="stream writes")

    async def read(self, namespace: str, name: FileName) -> AsyncGenerator[bytes, None]:
        """Yield a file in chunks, also if it is deleted meanwhile. Close the generator. Raises NotFound, DataLoss."""
        if not await self._rows.read(references.find, namespace=namespace, names=[name]):
            raise NotFound("file", name.chain_hash.hex(), "it may have been evicted; compute it again")
        source = pieces(name, self._directory.path(name))
        try:
            while piece := await asyncio.wrap_future(self._reading.submit(next, source, b"")):
                for start in range(0, len(piece), CHUNK_BYTES):
                    yield piece[start : start + CHUNK_BYTES]
        finally:
            _last(self._reading, source.close)

    async def write(self, file: FileRow, publication: Publication, chunks: AsyncIterator[bytes]) -> None:
        """Take a file in and publish it, as `publication` says; one that is there already is not asked for.

        Raises what `chunks` raises; DataLoss for other bytes than announced; ResourceExhausted. Then nothing is left of
        it.
        """
        for _, path in await asyncio.wrap_future(self._blocks.stage(publication.key.namespace, [file.name])):
            spool = Spool(path, file.size_bytes, file.digest)
            try:
                async for chunk in chunks:
                    await asyncio.wrap_future(self._writing.submit(spool.write, chunk))
                await asyncio.wrap_future(self._writing.submit(spool.finish))
                published = self._blocks.publish(replace(publication, staged=[Staged(file, path)]))
                await asyncio.wrap_future(published)
            finally:
                await asyncio.shield(asyncio.wrap_future(_last(self._writing, spool.discard)))

    def close(self) -> None:
        self._reading.shutdown()
        self._writing.shutdown()


def _last(thread: ThreadPoolExecutor, work: Callable[[], _T]) -> "Future[_T]":
    """Queue it after all that is being done, also where the store is closing."""
    try:
        return thread.submit(work)
    except RuntimeError:
        done: Future[_T] = Future()
        done.set_result(work())
        return done
