"""The cache store's client, with domain values for turns."""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from agentmem import errors
from agentmem.kv.blockfile import FileKind, FileName
from agentmem.kv.ledger import NO_VERSION, Ledger, Version
from agentmem.process.logs import event
from agentmem.v1 import agent_pb2, agent_pb2_grpc, cache_store_pb2_grpc, cluster_pb2, cluster_pb2_grpc, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.validation import AgentKey

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

_TIMEOUT_SECONDS = 30.0
_REMOTE_TIMEOUT_SECONDS = 600.0
_REMOTE_REQUESTS = (pb.FetchBlocksRequest, agent_pb2.DeleteAgentRequest)
"""The store waits for the object store by its own limit."""
COMMIT_SECONDS = 60.0
"""A commit of unknown outcome is repeated so long; a killed store is back long before."""
_PAUSES_SECONDS = (0.1, 2.0)
"""Before the first repetition, and at most."""
_UNSETTLED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)
"""The disk fails, or another program holds the file: says nothing of earlier attempts."""
_NO_ANSWER = "the cache store does not answer; try again"
_UNKNOWN = (
    "the cache store does not answer, and it is not known whether the turn is in the ledger: send it again under its "
    "request_id, or read the agent first"
)


@dataclass(frozen=True)
class Opened:
    """The store's knowledge of an agent; `ledger` is None if the known version is right. Files are by chain hash;
    `kv_fingerprint` is "" without published KV.
    """

    version: Version
    ledger: Ledger | None
    files: Mapping[bytes, pb.StoredFile] = field(default_factory=dict)
    windows: Mapping[bytes, pb.StoredFile] = field(default_factory=dict)
    evicted: bool = False
    turn: pb.CommittedTurn | None = None
    kv_fingerprint: str = ""
    context_policy: types_pb2.ContextPolicy.ValueType = types_pb2.CONTEXT_POLICY_UNSPECIFIED

    def is_incompatible(self, fingerprint: str) -> bool:
        return self.kv_fingerprint not in ("", fingerprint)


NOTHING = Opened(NO_VERSION, None)
"""For a store that does not answer."""


class StoreClient:
    """Event loop. Raises errors of `agentmem.errors`; Unavailable if the store cannot be reached."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.agents = agent_pb2_grpc.AgentServiceStub(channel)
        """The storage half of AgentService."""
        self._store = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
        self._cluster = cluster_pb2_grpc.ClusterServiceStub(channel)

    async def call(self, rpc: "grpc.aio.UnaryUnaryMultiCallable[_Request, _Response]", request: _Request) -> _Response:
        slow = isinstance(request, _REMOTE_REQUESTS)
        return await _raising(rpc(request, timeout=_REMOTE_TIMEOUT_SECONDS if slow else _TIMEOUT_SECONDS))

    async def open(
        self,
        key: AgentKey,
        known: Version = NO_VERSION,
        request_id: str = "",
        block_hashes: Iterable[bytes] = (),
        window_hashes: Iterable[bytes] = (),
        peek: bool = False,
        turn_agent_id: str = "",
    ) -> Opened:
        """Return state and ledger, the turn committed as `request_id`, and existing files; to `peek` is no use.
        `turn_agent_id` asks if `key` names no agent.
        """
        request = pb.OpenCacheRequest(
            key=key.to_proto(),
            known=known.to_proto(),
            request_id=request_id,
            block_hashes=block_hashes,
            window_hashes=window_hashes,
            peek=peek,
            turn_agent_id=turn_agent_id,
        )
        answer = await self.call(self._store.OpenCache, request)
        return Opened(
            version=Version.from_proto(answer.version),
            ledger=Ledger.from_proto(answer.ledger) if answer.HasField("ledger") else None,
            files=_of_kind(answer.files, pb.FILE_KIND_BLOCK),
            windows=_of_kind(answer.files, pb.FILE_KIND_WINDOW),
            evicted=answer.evicted,
            turn=answer.turn if answer.HasField("turn") else None,
            kv_fingerprint=answer.kv_fingerprint,
            context_policy=answer.context_policy,
        )

    async def share_setup(self, name: str, value: bytes) -> bytes | None:
        """Return the first setup given in the cluster; b"" without one, None if the store does not answer. An empty
        `value` asks.
        """
        try:
            answer = await self.call(self._cluster.ShareSetup, cluster_pb2.ShareSetupRequest(name=name, value=value))
        except errors.AgentmemError as error:
            if isinstance(error, errors.Unimplemented):
                return b""
            event(log, "a model's setup cannot be shared yet", logging.WARNING, error=error.message)
            return None
        return bytes(answer.value)

    async def find_block(
        self, namespace: str, fingerprint: str, parent: bytes, token_ids: bytes, peek: bool = False
    ) -> pb.StoredFile | None:
        """Return the block after `parent` that shares most with the `ordered` `token_ids`."""
        request = pb.FindBlockRequest(
            namespace=namespace, fingerprint=fingerprint, parent=parent, token_ids=token_ids, peek=peek
        )
        answer = await self.call(self._store.FindBlock, request)
        return answer.file if answer.HasField("file") else None

    async def find_snapshot(
        self, key: AgentKey, base: Version, text: bytes, common_tokens: int, tokenizer_hash: str
    ) -> tuple[int, Ledger] | None:
        """Return version and ledger of the snapshot that shares most with `text`, if more than the base's
        `common_tokens`.
        """
        request = pb.FindSnapshotRequest(
            key=key.to_proto(),
            base=base.to_proto(),
            text=text,
            common_tokens=common_tokens,
            tokenizer_hash=tokenizer_hash,
        )
        answer = await self.call(self._store.FindSnapshot, request)
        return (answer.version.version, Ledger.from_proto(answer.ledger)) if answer.HasField("version") else None

    async def commit(self, request: pb.CommitTurnRequest) -> tuple[Version, pb.CommittedTurn | None]:
        """Append a turn durably; return the version, and the earlier turn of this request_id.

        Calls of unknown outcome are repeated under a `commit_id`. Raises Unavailable after COMMIT_SECONDS, or if the
        channel closes: the turn may be in the ledger, also later.
        """
        request.commit_id = uuid.uuid4().bytes
        end, (pause, longest), unanswered = time.monotonic() + COMMIT_SECONDS, _PAUSES_SECONDS, 0
        while True:
            seconds = max(0.0, min(_TIMEOUT_SECONDS, end - time.monotonic()))
            try:
                answer = await self._store.CommitTurn(request, timeout=seconds, wait_for_ready=True)
                break
            except grpc.aio.UsageError as error:  # this process ends
                raise errors.Unavailable(_UNKNOWN) from error
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                raise errors.Unavailable(_UNKNOWN) from None  # The channel was closed; the caller was not cancelled.
            except grpc.aio.AioRpcError as error:
                if not errors.is_silence(error) and not (unanswered and error.code() in _UNSETTLED):
                    raise errors.from_rpc(error) from error
                unanswered += 1
                if time.monotonic() + pause >= end:
                    event(log, "a commit was never answered", logging.ERROR, attempts=unanswered)
                    raise errors.Unavailable(_UNKNOWN) from error
                if unanswered == 1:
                    event(log, "a commit was not answered, and is repeated", logging.WARNING, error=error.code().name)
            await asyncio.sleep(pause)
            pause = min(longest, 2 * pause)
        if unanswered:
            event(log, "a commit was answered at last", logging.WARNING, unanswered=unanswered)
        return Version.from_proto(answer.version), answer.replayed if answer.HasField("replayed") else None

    async def create_agent(
        self, key: AgentKey, ledger: Ledger, context_policy: "types_pb2.ContextPolicy.ValueType"
    ) -> Version:
        """Raises AlreadyExists."""
        request = pb.CreateAgentRequest(key=key.to_proto(), ledger=ledger.to_proto(), context_policy=context_policy)
        return Version.from_proto((await self.call(self._store.CreateAgent, request)).version)

    async def fetch(self, namespace: str, names: Iterable[FileName]) -> dict[FileName, pb.StoredFile]:
        """Fetch remote files to the store's disk; return those there now."""
        request = pb.FetchBlocksRequest(namespace=namespace, names=map(FileName.to_proto, names))
        answer = await self.call(self._store.FetchBlocks, request)
        return {FileName.from_proto(file): file for file in answer.files}

    async def stage(self, namespace: str, names: Iterable[FileName]) -> dict[FileName, str]:
        """Return paths for missing files."""
        request = pb.StageBlocksRequest(namespace=namespace, names=map(FileName.to_proto, names))
        answer = await self.call(self._store.StageBlocks, request)
        return {FileName(FileKind(file.kind), file.chain_hash): file.path for file in answer.files}

    async def publish(
        self,
        key: AgentKey,
        version: Version,
        files: Iterable[pb.StoredFile],
        references: Iterable[FileName],
        fingerprint: str,
    ) -> None:
        request = pb.PublishBlocksRequest(
            key=key.to_proto(),
            version=version.to_proto(),
            files=files,
            references=map(FileName.to_proto, references),
            fingerprint=fingerprint,
        )
        await self.call(self._store.PublishBlocks, request)

    async def quarantine(self, namespace: str, name: FileName, digest: bytes, reason: str) -> None:
        request = pb.QuarantineBlockRequest(namespace=namespace, name=name.to_proto(), reason=reason, digest=digest)
        await self.call(self._store.QuarantineBlock, request)

    async def identify(self) -> pb.GetStoreResponse:
        return await self.call(self._store.GetStore, pb.GetStoreRequest())


async def _raising(call: Awaitable[_T]) -> _T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise errors.from_peer(error, _NO_ANSWER) from error


def _of_kind(files: Iterable[pb.StoredFile], kind: pb.FileKind.ValueType) -> dict[bytes, pb.StoredFile]:
    return {bytes(file.chain_hash): file for file in files if file.kind == kind}
