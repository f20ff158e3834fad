"""Files of KV on other nodes' disks: looked for where an agent's last turn ran, and checked before they are published.

Where a node does not answer, or has evicted a file, it comes from the object store, or is computed.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

import grpc
from prometheus_client import CollectorRegistry, Counter

from agentmem.channels import ChannelsByAddress
from agentmem.errors import AgentmemError, is_silence
from agentmem.kv.blockfile import FileKind, FileName
from agentmem.kv.ledger import Version
from agentmem.process.logs import event
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc
from agentmem.validation import AgentKey
from cache_service.files.publication import Publication
from cache_service.files.references import FileRow
from cache_service.tiers.streams import BlockStreams

log = logging.getLogger(__name__)

Holder = Callable[[AgentKey], Awaitable[tuple[str, Version]]]
"""Returns the address of the node with an agent's KV, "" for none, and that KV's version."""
Connect = Callable[[str], grpc.aio.Channel]

_LOOK_SECONDS: Final = 1.0
"""A turn waits for it."""
_FIRST_SECONDS: Final = 5.0
"""Until a file's first bytes. Later pings find that a node hangs."""
_READ_SECONDS: Final = 30.0
_REST_SECONDS: Final = 10.0
"""A node that did not answer is left alone."""
_AT_ONCE: Final = 4
_MOST: Final = 10_000


class _Found(NamedTuple):
    address: str
    file: FileRow
    publication: Publication


class _SilentNode(Exception):
    """A node takes calls, and sends nothing."""


class PeerMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.fetches = Counter(
            "agentmem_peer_fetches",
            "Files that were asked of other nodes: warm (they are here now), or failed.",
            ["result"],
            registry=registry,
        )
        self.fetch_bytes = Counter(
            "agentmem_peer_fetch_bytes", "Bytes that came from other nodes and were found good.", registry=registry
        )
        for result in ("warm", "failed"):
            self.fetches.labels(result)


class PeerBlocks:
    """`ledger_home.Peers`."""

    def __init__(self, holder: Holder, connect: Connect, streams: BlockStreams, registry: CollectorRegistry) -> None:
        self._holder = holder
        self._channels = ChannelsByAddress(connect)
        self._streams = streams
        self._found: OrderedDict[tuple[str, FileName], _Found] = OrderedDict()
        self._resting: dict[str, float] = {}
        self._metrics = PeerMetrics(registry)

    async def look(self, key: AgentKey, names: Iterable[FileName]) -> list[FileRow]:
        asked = list(names)
        address, version = await self._holder(key)
        if not address or self._rests(address):
            return []
        request = pb.OpenCacheRequest(
            key=key.to_proto(),
            known=version.to_proto(),
            block_hashes=[name.chain_hash for name in asked if name.kind is FileKind.BLOCK],
            window_hashes=[name.chain_hash for name in asked if name.kind is FileKind.WINDOW],
            peek=True,
        )
        try:
            answer: pb.OpenCacheResponse = await self._stub(address).OpenCache(request, timeout=_LOOK_SECONDS)
        except grpc.aio.AioRpcError as error:
            event(log, "a node does not say what it has", logging.INFO, address=address, status=error.code().name)
            self._failed(address, error)
            return []
        if answer.version != request.known or not answer.kv_fingerprint:
            return []
        publication = Publication(key, version, (), None, answer.kv_fingerprint)
        found = [FileRow.from_proto(file) for file in answer.files if file.path]
        for row in found:
            self._found[(key.namespace, row.name)] = _Found(address, row, publication)
        while len(self._found) > _MOST:
            self._found.popitem(last=False)
        return found

    async def fetch(self, namespace: str, names: Sequence[FileName]) -> None:
        wanted = [each for name in names if (each := self._found.pop((namespace, name), None)) is not None]
        if wanted:
            places = asyncio.Semaphore(_AT_ONCE)
            await asyncio.gather(*(self._bring(each, places) for each in wanted))

    async def close(self) -> None:
        await self._channels.close()

    async def _bring(self, each: _Found, places: asyncio.Semaphore) -> None:
        async with places:
            if self._rests(each.address):
                self._metrics.fetches.labels("failed").inc()
                return
            began = time.monotonic()
            try:
                async with aclosing(self._chunks(each)) as chunks:
                    await self._streams.write(each.file, each.publication, chunks)
            except (grpc.aio.AioRpcError, AgentmemError, _SilentNode) as error:
                self._metrics.fetches.labels("failed").inc()
                self._failed(each.address, error)
                said = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
                event(log, "fetch from a node failed", logging.WARNING, address=each.address, error=said)
                return
        self._metrics.fetches.labels("warm").inc()
        self._metrics.fetch_bytes.inc(each.file.size_bytes)
        log.debug("fetched %d bytes in %.3f s", each.file.size_bytes, time.monotonic() - began)

    async def _chunks(self, each: _Found) -> AsyncGenerator[bytes, None]:
        namespace, (kind, chain_hash) = each.publication.key.namespace, each.file.name
        request = pb.ReadBlockRequest(
            namespace=namespace, name=pb.FileName(kind=kind.to_proto(), chain_hash=chain_hash)
        )
        call = self._stub(each.address).ReadBlock(request, timeout=_READ_SECONDS)
        try:
            try:
                async with asyncio.timeout(_FIRST_SECONDS):
                    first = await anext(aiter(call), None)
            except TimeoutError:
                raise _SilentNode(f"it has sent nothing for {_FIRST_SECONDS:g} seconds") from None
            if first is None:
                return
            yield first.chunk
            async for answer in call:
                yield answer.chunk
        finally:
            call.cancel()

    def _rests(self, address: str) -> bool:
        return time.monotonic() < self._resting.get(address, 0.0)

    def _failed(self, address: str, error: Exception) -> None:
        if isinstance(error, _SilentNode) or (isinstance(error, grpc.aio.AioRpcError) and is_silence(error)):
            self._resting[address] = time.monotonic() + _REST_SECONDS

    def _stub(self, address: str) -> "cache_store_pb2_grpc.CacheStoreServiceAsyncStub":
        return cache_store_pb2_grpc.CacheStoreServiceStub(self._channels.to(address))
