"""The store as the worker sees it: domain values in and out, the contract's errors raised."""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, Self, TypeVar

import grpc

from agentmem import errors
from agentmem.blockfile import BlockHeader
from agentmem.expiry import NEVER, IdleTimes
from agentmem.keys import AgentKey
from agentmem.v1 import agent_pb2, agent_pb2_grpc, cache_store_pb2, cache_store_pb2_grpc, types_pb2
from inference_service.memory.ledger import NO_VERSION, Ledger, TurnPlace, Version
from inference_service.storage.chunks import received, sent

_T = TypeVar("_T")

_TIMEOUT_SECONDS = 30.0
_SLOWEST_BYTES_PER_SECOND = 1 << 20
_REMOTE_TIMEOUT_SECONDS = 600.0  # where the store waits for the object store, by its own limit


class FileName(NamedTuple):
    """A file's name. A window at a block's end has the block's chain hash, so the kind is a part of it."""

    kind: cache_store_pb2.FileKind.ValueType
    chain_hash: bytes

    @classmethod
    def of(cls, header: BlockHeader) -> Self:
        """The name of the file that has this header."""
        kind = cache_store_pb2.FILE_KIND_WINDOW if header.window else cache_store_pb2.FILE_KIND_BLOCK
        return cls(kind, header.chain_hash)

    @classmethod
    def block(cls, chain_hash: bytes) -> Self:
        """The name of a block."""
        return cls(cache_store_pb2.FILE_KIND_BLOCK, chain_hash)

    @classmethod
    def window(cls, chain_hash: bytes) -> Self:
        """The name of a window."""
        return cls(cache_store_pb2.FILE_KIND_WINDOW, chain_hash)


@dataclass(frozen=True)
class Opened:
    """What the store has of an agent. `ledger` is None where the known version is still right.

    `files` are blocks and `windows` are windows, both by chain hash. `kv_fingerprint` is that of the KV which the
    agent's published state consists of; "" if there is none.
    """

    version: Version
    ledger: Ledger | None
    files: Mapping[bytes, cache_store_pb2.StoredFile] = field(default_factory=dict)
    windows: Mapping[bytes, cache_store_pb2.StoredFile] = field(default_factory=dict)
    evicted: frozenset[bytes] = frozenset()
    turn: cache_store_pb2.CommittedTurn | None = None
    kv_fingerprint: str = ""
    context_policy: types_pb2.ContextPolicy.ValueType = types_pb2.CONTEXT_POLICY_UNSPECIFIED

    def is_incompatible(self, fingerprint: str) -> bool:
        """Whether the agent's KV is of no use to a model with this fingerprint."""
        return self.kv_fingerprint not in ("", fingerprint)


@dataclass(frozen=True)
class StoreIdentity:
    """Which store process answers, and where its disk can be recognized: see GetStore."""

    instance: bytes
    probe_path: str
    staging_directory: str
    witness_seen: bool


NOTHING = Opened(NO_VERSION, None)
"""What a store that does not answer has."""


@dataclass(frozen=True)
class Commit:
    """A turn for the ledger: what follows the first `keep_tokens` tokens of the base.

    `ends_turn_hint`: it was the turn that the agent's hint was of. `carried_turns` are earlier turns that follow what
    is kept, with their places in the new ledger, whose `opening_bytes` and `template_time` these are; see
    CommitTurnRequest. `snapshot_version` is that of the snapshot whose tokens are kept, in place of the base's; 0 for
    none.
    """

    base: Version
    keep_tokens: int
    token_ids: Sequence[int]
    pieces: Sequence[bytes]
    tokenizer_hash: str
    generated_tokens: int
    request_id: str
    request_digest: bytes
    record: cache_store_pb2.TurnRecord
    message_hashes: Sequence[bytes] = ()
    label: str = ""
    expiry: IdleTimes = NEVER
    ends_turn_hint: bool = False
    carried_turns: Sequence[TurnPlace] = ()
    opening_bytes: int = 0
    template_time: str = ""
    context_policy: types_pb2.ContextPolicy.ValueType = types_pb2.CONTEXT_POLICY_UNSPECIFIED
    snapshot_version: int = 0


class StoreClient:
    """Calls the cache store. Raises the errors of `agentmem.errors`; Unavailable where it cannot be reached."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.instance = b""
        """The store process that answered last, by its random name."""
        self._store = cache_store_pb2_grpc.CacheStoreServiceStub(channel)
        self._agents = agent_pb2_grpc.AgentServiceStub(channel)

    async def open(
        self,
        key: AgentKey,
        known: Version = NO_VERSION,
        request_id: str = "",
        block_hashes: Iterable[bytes] = (),
        window_hashes: Iterable[bytes] = (),
        peek: bool = False,
    ) -> Opened:
        """The agent's state and ledger, the turn committed as `request_id`, and which blocks and windows exist.

        To `peek` does not count as a use of any of it.
        """
        request = cache_store_pb2.OpenCacheRequest(
            key=key.to_proto(),
            known=version_to_proto(known),
            request_id=request_id,
            block_hashes=block_hashes,
            window_hashes=window_hashes,
            peek=peek,
        )
        answer = await _raising(self._store.OpenCache(request, timeout=_TIMEOUT_SECONDS))
        self.instance = answer.instance
        return Opened(
            version=Version(answer.version.uid, answer.version.version),
            ledger=_ledger(answer.ledger) if answer.HasField("ledger") else None,
            files=_of_kind(answer.files, cache_store_pb2.FILE_KIND_BLOCK),
            windows=_of_kind(answer.files, cache_store_pb2.FILE_KIND_WINDOW),
            evicted=frozenset(answer.evicted_hashes),
            turn=answer.turn if answer.HasField("turn") else None,
            kv_fingerprint=answer.kv_fingerprint,
            context_policy=answer.context_policy,
        )

    async def fetch(self, namespace: str, names: Iterable[FileName]) -> dict[FileName, cache_store_pb2.StoredFile]:
        """Bring files that are in tier remote back to the store's disk; those that are there now."""
        request = cache_store_pb2.FetchBlocksRequest(namespace=namespace, names=map(_name, names))
        answer = await _raising(self._store.FetchBlocks(request, timeout=_REMOTE_TIMEOUT_SECONDS))
        return {FileName(file.kind, bytes(file.chain_hash)): file for file in answer.files}

    async def find_snapshot(
        self, key: AgentKey, base: Version, text: bytes, common_tokens: int, tokenizer_hash: str
    ) -> tuple[int, Ledger] | None:
        """The version and the ledger of the snapshot that shares most with a prompt, if it is more than the base does.

        `common_tokens` are the base's tokens that `text`, the prompt, begins with.
        """
        request = cache_store_pb2.FindSnapshotRequest(
            key=key.to_proto(),
            base=version_to_proto(base),
            text=text,
            common_tokens=common_tokens,
            tokenizer_hash=tokenizer_hash,
        )
        answer = await _raising(self._store.FindSnapshot(request, timeout=_TIMEOUT_SECONDS))
        return (answer.version.version, _ledger(answer.ledger)) if answer.HasField("version") else None

    async def commit(self, key: AgentKey, commit: Commit) -> tuple[Version, cache_store_pb2.CommittedTurn | None]:
        """Append a turn durably; the new version, and the turn that was there if the request_id was not new."""
        request = cache_store_pb2.CommitTurnRequest(
            key=key.to_proto(),
            base=version_to_proto(commit.base),
            keep_tokens=commit.keep_tokens,
            token_ids=commit.token_ids,
            text=b"".join(commit.pieces),
            offsets=accumulate(map(len, commit.pieces)),
            tokenizer_hash=commit.tokenizer_hash,
            generated_tokens=commit.generated_tokens,
            ends_turn_hint=commit.ends_turn_hint,
            request_id=commit.request_id,
            request_digest=commit.request_digest,
            record=commit.record,
            message_hashes=commit.message_hashes,
            label=commit.label,
            expiry=commit.expiry.to_proto(),
            carried_turns=[cache_store_pb2.LedgerTurn(**turn._asdict()) for turn in commit.carried_turns],
            opening_bytes=commit.opening_bytes,
            template_time=commit.template_time,
            context_policy=commit.context_policy,
            snapshot_version=commit.snapshot_version,
        )
        answer = await _raising(self._store.CommitTurn(request, timeout=_TIMEOUT_SECONDS))
        replayed = answer.replayed if answer.HasField("replayed") else None
        return Version(answer.version.uid, answer.version.version), replayed

    async def create_agent(
        self, key: AgentKey, ledger: Ledger, context_policy: "types_pb2.ContextPolicy.ValueType"
    ) -> Version:
        """Make an agent of a whole ledger, durably. Raises AlreadyExists."""
        turns = [cache_store_pb2.LedgerTurn(**turn._asdict()) for turn in ledger.turns]
        message = cache_store_pb2.Ledger(
            token_ids=ledger.token_ids,
            text=ledger.text,
            offsets=ledger.offsets,
            tokenizer_hash=ledger.tokenizer_hash,
            turns=turns,
            opening_bytes=ledger.opening_bytes,
            template_time=ledger.template_time,
        )
        request = cache_store_pb2.CreateAgentRequest(key=key.to_proto(), ledger=message, context_policy=context_policy)
        answer = await _raising(self._store.CreateAgent(request, timeout=_TIMEOUT_SECONDS))
        return Version(answer.version.uid, answer.version.version)

    async def stage(self, namespace: str, names: Iterable[FileName]) -> dict[FileName, str]:
        """Paths for those files that do not exist yet."""
        request = cache_store_pb2.StageBlocksRequest(namespace=namespace, names=map(_name, names))
        answer = await _raising(self._store.StageBlocks(request, timeout=_TIMEOUT_SECONDS))
        self.instance = answer.instance
        return {FileName(file.kind, bytes(file.chain_hash)): file.path for file in answer.files}

    async def publish(
        self,
        key: AgentKey,
        version: Version,
        files: Iterable[cache_store_pb2.StoredFile],
        references: Iterable[FileName],
        fingerprint: str,
    ) -> None:
        """Make staged files visible, and say which files the agent's state consists of."""
        request = cache_store_pb2.PublishBlocksRequest(
            key=key.to_proto(),
            version=version_to_proto(version),
            files=files,
            references=map(_name, references),
            fingerprint=fingerprint,
        )
        await _raising(self._store.PublishBlocks(request, timeout=_TIMEOUT_SECONDS))

    async def identify(self, witness_path: str = "") -> StoreIdentity:
        """Which store process answers; and whether it sees what was written at `witness_path`."""
        request = cache_store_pb2.GetStoreRequest(witness_path=witness_path)
        answer = await _raising(self._store.GetStore(request, timeout=_TIMEOUT_SECONDS))
        self.instance = answer.instance
        return StoreIdentity(answer.instance, answer.probe_path, answer.staging_directory, answer.witness_seen)

    async def read_block(self, namespace: str, name: FileName, size_bytes: int) -> bytes:
        """A file's bytes, received into memory: at most one chunk more than `size_bytes`, whatever is sent."""
        request = cache_store_pb2.ReadBlockRequest(namespace=namespace, name=_name(name))
        call = self._store.ReadBlock(request, timeout=_stream_seconds(size_bytes))
        data: bytes = await _raising(received(call, size_bytes))
        return data

    async def write_block(self, header: cache_store_pb2.WriteBlockHeader, data: bytes) -> None:
        """Send a file, which is then published. `header` describes it."""
        call = self._store.WriteBlock(sent(header, data), timeout=_stream_seconds(len(data)))
        try:
            await _raising(call)
        finally:
            call.cancel()

    async def quarantine(self, namespace: str, name: FileName, digest: bytes, reason: str) -> None:
        """Take a damaged file out of use, if it is still the one with this digest."""
        request = cache_store_pb2.QuarantineBlockRequest(
            namespace=namespace, name=_name(name), reason=reason, digest=digest
        )
        await _raising(self._store.QuarantineBlock(request, timeout=_TIMEOUT_SECONDS))

    async def get_agent(self, request: agent_pb2.GetAgentRequest) -> agent_pb2.GetAgentResponse:
        """The storage half of GetAgent."""
        return await _answer(self._agents.GetAgent(request, timeout=_TIMEOUT_SECONDS))

    async def list_agents(self, request: agent_pb2.ListAgentsRequest) -> agent_pb2.ListAgentsResponse:
        """The storage half of ListAgents."""
        return await _answer(self._agents.ListAgents(request, timeout=_TIMEOUT_SECONDS))

    async def find_agent(self, request: agent_pb2.FindAgentRequest) -> agent_pb2.FindAgentResponse:
        """The storage half of FindAgent."""
        return await _answer(self._agents.FindAgent(request, timeout=_TIMEOUT_SECONDS))

    async def set_turn_hints(self, request: agent_pb2.SetTurnHintsRequest) -> agent_pb2.SetTurnHintsResponse:
        """The storage half of SetTurnHints."""
        return await _answer(self._agents.SetTurnHints(request, timeout=_TIMEOUT_SECONDS))

    async def delete_agent(self, request: agent_pb2.DeleteAgentRequest) -> agent_pb2.DeleteAgentResponse:
        """The storage half of DeleteAgent."""
        return await _answer(self._agents.DeleteAgent(request, timeout=_REMOTE_TIMEOUT_SECONDS))

    async def fork_agent(self, request: agent_pb2.ForkAgentRequest) -> agent_pb2.ForkAgentResponse:
        """The storage half of ForkAgent."""
        return await _answer(self._agents.ForkAgent(request, timeout=_TIMEOUT_SECONDS))

    async def trim_agent(self, request: agent_pb2.TrimAgentRequest) -> agent_pb2.TrimAgentResponse:
        """The storage half of TrimAgent."""
        return await _answer(self._agents.TrimAgent(request, timeout=_TIMEOUT_SECONDS))

    async def create_snapshot(self, request: agent_pb2.CreateSnapshotRequest) -> agent_pb2.CreateSnapshotResponse:
        """The storage half of CreateSnapshot."""
        return await _answer(self._agents.CreateSnapshot(request, timeout=_TIMEOUT_SECONDS))

    async def list_turns(self, request: agent_pb2.ListTurnsRequest) -> agent_pb2.ListTurnsResponse:
        """The storage half of ListTurns."""
        return await _answer(self._agents.ListTurns(request, timeout=_TIMEOUT_SECONDS))

    async def list_snapshots(self, request: agent_pb2.ListSnapshotsRequest) -> agent_pb2.ListSnapshotsResponse:
        """The storage half of ListSnapshots."""
        return await _answer(self._agents.ListSnapshots(request, timeout=_TIMEOUT_SECONDS))

    async def restore_snapshot(self, request: agent_pb2.RestoreSnapshotRequest) -> agent_pb2.RestoreSnapshotResponse:
        """The storage half of RestoreSnapshot."""
        return await _answer(self._agents.RestoreSnapshot(request, timeout=_TIMEOUT_SECONDS))

    async def delete_snapshot(self, request: agent_pb2.DeleteSnapshotRequest) -> agent_pb2.DeleteSnapshotResponse:
        """The storage half of DeleteSnapshot."""
        return await _answer(self._agents.DeleteSnapshot(request, timeout=_TIMEOUT_SECONDS))

    async def pin_agent(self, request: agent_pb2.PinAgentRequest) -> agent_pb2.PinAgentResponse:
        """The storage half of PinAgent."""
        return await _answer(self._agents.PinAgent(request, timeout=_TIMEOUT_SECONDS))

    async def set_agent_ttl(self, request: agent_pb2.SetAgentTtlRequest) -> agent_pb2.SetAgentTtlResponse:
        """The storage half of SetAgentTtl."""
        return await _answer(self._agents.SetAgentTtl(request, timeout=_TIMEOUT_SECONDS))

    async def set_context_policy(
        self, request: agent_pb2.SetContextPolicyRequest
    ) -> agent_pb2.SetContextPolicyResponse:
        """The storage half of SetContextPolicy."""
        return await _answer(self._agents.SetContextPolicy(request, timeout=_TIMEOUT_SECONDS))

    async def evict_agent(self, request: agent_pb2.EvictAgentRequest) -> agent_pb2.EvictAgentResponse:
        """The storage half of EvictAgent."""
        return await _answer(self._agents.EvictAgent(request, timeout=_TIMEOUT_SECONDS))


def _stream_seconds(size_bytes: int) -> float:
    return _TIMEOUT_SECONDS + size_bytes / _SLOWEST_BYTES_PER_SECOND


def version_to_proto(version: Version) -> types_pb2.AgentVersion:
    """The version as a message."""
    return types_pb2.AgentVersion(uid=version.uid, version=version.number)


async def _answer(call: Awaitable[_T]) -> _T:
    answer: _T = await _raising(call)
    return answer


async def _raising(call: Any) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise errors.from_peer(error, "the cache store does not answer; try again") from error


def _ledger(ledger: cache_store_pb2.Ledger) -> Ledger:
    turns = tuple(
        TurnPlace(turn.end_token, turn.generated_tokens, turn.messages, turn.message_hash) for turn in ledger.turns
    )
    return Ledger(
        *(tuple(ledger.token_ids), ledger.text, tuple(ledger.offsets), ledger.tokenizer_hash, turns),
        opening_bytes=ledger.opening_bytes,
        template_time=ledger.template_time,
    )


def _of_kind(
    files: Iterable[cache_store_pb2.StoredFile], kind: cache_store_pb2.FileKind.ValueType
) -> dict[bytes, cache_store_pb2.StoredFile]:
    return {bytes(file.chain_hash): file for file in files if file.kind == kind}


def _name(name: FileName) -> cache_store_pb2.FileName:
    return cache_store_pb2.FileName(kind=name.kind, chain_hash=name.chain_hash)
