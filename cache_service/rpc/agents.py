"""The storage half of AgentService; what needs the model is the worker's own."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, ParamSpec, TypeVar

import grpc

from agentmem import paging
from agentmem.errors import InvalidArgument, NotFound, Unavailable
from agentmem.kv import tiers as kv_tiers
from agentmem.kv.hints import TurnHints, from_request
from agentmem.process.shielding import run_shielded
from agentmem.v1 import agent_pb2 as pb
from agentmem.v1 import agent_pb2_grpc, types_pb2
from agentmem.validation import AUTOMATIC_SNAPSHOT, AgentKey, IdleTimes, check_revision, check_text
from cache_service.connection import Connection
from cache_service.files import holding
from cache_service.ledger import agents, branches, finding, history, object_references, snapshots
from cache_service.ledger.agents import Agent
from cache_service.ledger.clock import LedgerClock
from cache_service.ledger.ledgers import Ledgers, Query
from cache_service.ledger_home import LedgerHome
from cache_service.rpc import conversions
from cache_service.rpc.agent_conversions import agent_filter, agent_message, only_hot, snapshot_message, turn_message
from cache_service.tiers import objects
from cache_service.tiers.blocks import BlockStore
from cache_service.tiers.replication import Replicator
from cache_service.tiers.warm_rows import WarmRows

_P = ParamSpec("_P")
_T = TypeVar("_T")
Context = grpc.aio.ServicerContext[Any, Any]

MAX_NAME_BYTES = 128
MAX_PAGE_BYTES = 1 << 20
"""Bytes of text, after which a page of turns ends."""
FOLLOWING_SECONDS = 30.0
"""How long a deletion waits for other nodes; one that has ended counts as there for 10 s."""
RETRY_SECONDS = 30.0


@dataclass(eq=False)
class AgentServicer(agent_pb2_grpc.AgentServiceServicer):
    """Each RPC is one transaction of the ledger's functions. Event loop.

    Unused files are deleted after it, even if the caller has gone.
    """

    _database: Ledgers
    _rows: WarmRows
    _clock: LedgerClock
    _blocks: BlockStore
    _hints: TurnHints
    _replicator: Replicator | None
    """None where there is no remote tier."""
    _home: LedgerHome

    async def GetAgent(self, request: pb.GetAgentRequest, context: Context) -> pb.GetAgentResponse:
        agent = await self._database.read(agents.described, AgentKey.from_proto(request.key))
        return pb.GetAgentResponse(agent=await self._message(agent))

    async def ListAgents(self, request: pb.ListAgentsRequest, context: Context) -> pb.ListAgentsResponse:
        size, after = paging.asked_size(request), paging.pair(request.page_token)
        found = await self._database.read(agents.page, agent_filter(request), after, size + 1)
        page, following = paging.cut(found, size, lambda agent: (agent.key.agent_id, agent.key.model_id))
        return pb.ListAgentsResponse(agents=await self._messages(page), next_page_token=following)

    async def ListTurns(self, request: pb.ListTurnsRequest, context: Context) -> pb.ListTurnsResponse:
        key = AgentKey.from_proto(request.key)
        size, after = paging.asked_size(request), paging.number(request.page_token)
        found = await self._database.read(history.page, key=key, after=after, limit=size + 1)
        if request.include_text:
            ends = accumulate(len(entry.prompt) + len(entry.generated) for entry in found)
            size = min(size, max(1, sum(end <= MAX_PAGE_BYTES for end in ends)))
        page, following = paging.cut(found, size, lambda entry: (str(entry.id),))
        turns = [turn_message(entry, text=request.include_text) for entry in page]
        return pb.ListTurnsResponse(turns=turns, next_page_token=following)

    async def ListBlocks(self, request: pb.ListBlocksRequest, context: Context) -> pb.ListBlocksResponse:
        version, ends = await self._database.read(history.text_ends, AgentKey.from_proto(request.key))
        stored = (
            (types_pb2.TIER_WARM, await self._rows.read(holding.blocks, version.uid, request.fingerprint)),
            (
                types_pb2.TIER_REMOTE,
                await self._database.read(object_references.blocks, version.uid, request.fingerprint),
            ),
        )
        blocks = kv_tiers.messages(kv_tiers.parts(len(ends), stored), ends)
        return pb.ListBlocksResponse(version=version.to_proto(), tokens=len(ends), blocks=blocks)

    async def FindAgent(self, request: pb.FindAgentRequest, context: Context) -> pb.FindAgentResponse:
        model_id = check_text("model_id", request.model_id)
        label = check_text("label", request.label, allow_empty=True)
        hashes = conversions.message_hashes(request.message_hashes)
        namespace = check_text("namespace", request.namespace)
        if request_id := conversions.request_id(request.request_id):
            if hashes or label:
                raise InvalidArgument("request_id", "stands alone: leave message_hashes and label empty")
            found = await self._database.read(finding.of_turn, namespace, model_id, request_id)
        else:
            found = await self._database.read(finding.find, namespace, model_id, hashes, label)
        if found is None:
            return pb.FindAgentResponse()
        return pb.FindAgentResponse(
            agent=await self._message(found.agent),
            matched_messages=found.messages,
            version=found.version.to_proto(),
        )

    async def DeleteAgent(self, request: pb.DeleteAgentRequest, context: Context) -> pb.DeleteAgentResponse:
        key = AgentKey.from_proto(request.key, any_model=True)
        unfinished = self._blocks.is_erasing
        unfinished |= bool(await self._database.read(objects.waiting, key=key) + await self._home.unfollowed(key))
        deleted = await self._blocks.delete_agent(key)
        if not deleted.agents and not unfinished and not request.allow_missing:
            raise NotFound("agent", key.agent_id)
        await self._erased_everywhere(key)
        await self._objects_deleted(key)
        return pb.DeleteAgentResponse(deleted=deleted.agents, freed_bytes=deleted.freed_bytes)

    async def ForkAgent(self, request: pb.ForkAgentRequest, context: Context) -> pb.ForkAgentResponse:
        key = AgentKey.from_proto(request.key)
        at_version = request.at_version if request.HasField("at_version") else None
        moved = self._move(
            branches.fork,
            key,
            target=key._replace(agent_id=check_text("new_agent_id", request.new_agent_id)),
            at_version=at_version,
            keep_tokens=request.keep_tokens if request.HasField("keep_tokens") else None,
            idle_times=IdleTimes.from_proto(request.expiry, "expiry."),
            now=self._clock.now(),
            at_revision=_revision("at_revision", request.at_revision, at_version),
        )
        return pb.ForkAgentResponse(agent=await self._message(await run_shielded(moved)))

    async def TrimAgent(self, request: pb.TrimAgentRequest, context: Context) -> pb.TrimAgentResponse:
        key = AgentKey.from_proto(request.key)
        if_version = request.if_version if request.HasField("if_version") else None
        revision = _revision("if_revision", request.if_revision, if_version)
        moved = self._move(branches.trim, key, request.keep_tokens, if_version, self._clock.now(), revision)
        return pb.TrimAgentResponse(agent=await self._message(await run_shielded(moved)))

    async def CreateSnapshot(self, request: pb.CreateSnapshotRequest, context: Context) -> pb.CreateSnapshotResponse:
        key, name = AgentKey.from_proto(request.key), _name(request.name)
        if name.startswith(AUTOMATIC_SNAPSHOT):
            raise InvalidArgument("name", f"must not begin with {AUTOMATIC_SNAPSHOT!r}")
        made = await run_shielded(self._move(snapshots.create, key=key, name=name, now=self._clock.now()))
        return pb.CreateSnapshotResponse(snapshot=snapshot_message(key, made))

    async def ListSnapshots(self, request: pb.ListSnapshotsRequest, context: Context) -> pb.ListSnapshotsResponse:
        key = AgentKey.from_proto(request.key)
        size, before = paging.asked_size(request), paging.number(request.page_token)
        found = await self._database.read(snapshots.page, key=key, before=before, limit=size + 1)
        page, following = paging.cut(found, size, lambda snapshot: (str(snapshot.id),))
        return pb.ListSnapshotsResponse(
            snapshots=[snapshot_message(key, snapshot) for snapshot in page], next_page_token=following
        )

    async def RestoreSnapshot(self, request: pb.RestoreSnapshotRequest, context: Context) -> pb.RestoreSnapshotResponse:
        key, name = AgentKey.from_proto(request.key), _name(request.name)
        moved = self._move(branches.restore, key, name, self._clock.now())
        return pb.RestoreSnapshotResponse(agent=await self._message(await run_shielded(moved)))

    async def DeleteSnapshot(self, request: pb.DeleteSnapshotRequest, context: Context) -> pb.DeleteSnapshotResponse:
        key, name = AgentKey.from_proto(request.key), _name(request.name)
        await run_shielded(self._blocks.erase(snapshots.delete, key, name))
        return pb.DeleteSnapshotResponse()

    async def PinAgent(self, request: pb.PinAgentRequest, context: Context) -> pb.PinAgentResponse:
        agent = await self._database.write(agents.change, AgentKey.from_proto(request.key), pinned=request.pinned)
        return pb.PinAgentResponse(agent=await self._message(agent))

    async def SetAgentTtl(self, request: pb.SetAgentTtlRequest, context: Context) -> pb.SetAgentTtlResponse:
        key, times = AgentKey.from_proto(request.key), IdleTimes.from_proto(request)
        agent = await self._database.write(agents.change, key, **times._asdict())
        return pb.SetAgentTtlResponse(agent=await self._message(agent))

    async def SetContextPolicy(
        self, request: pb.SetContextPolicyRequest, context: Context
    ) -> pb.SetContextPolicyResponse:
        key = AgentKey.from_proto(request.key)
        policy = conversions.context_policy(request.context_policy, needed=True)
        agent = await self._database.write(agents.change, key, context_policy=policy)
        return pb.SetContextPolicyResponse(agent=await self._message(agent))

    async def EvictAgent(self, request: pb.EvictAgentRequest, context: Context) -> pb.EvictAgentResponse:
        key = AgentKey.from_proto(request.key)
        if only_hot(request.tier):
            await self._database.read(agents.existing, key=key)
            return pb.EvictAgentResponse()
        evicted = self._blocks.evict_agent(key, objects=request.tier == types_pb2.TIER_REMOTE)
        freed = await asyncio.wrap_future(evicted)
        return pb.EvictAgentResponse(freed_bytes=freed)

    async def SetTurnHints(self, request: pb.SetTurnHintsRequest, context: Context) -> pb.SetTurnHintsResponse:
        self._hints.set(from_request(request))
        return pb.SetTurnHintsResponse()

    async def _move(self, work: Query[Connection, _P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a transaction that makes states of others, and have files follow."""
        try:
            return await self._database.write(work, *args, **kwargs)
        finally:  # It may have been done before, and files could not follow then.
            await asyncio.wrap_future(self._blocks.follow())

    async def _message(self, agent: Agent) -> pb.Agent:
        return (await self._messages([agent]))[0]

    async def _messages(self, found: Sequence[Agent]) -> list[pb.Agent]:
        warmth = await self._rows.read(holding.warmth, [agent.version.uid for agent in found])
        return [agent_message(agent, warmth[agent.version.uid]) for agent in found]

    async def _erased_everywhere(self, key: AgentKey) -> None:
        """Wait until no node has files of the agent. Raises Unavailable."""
        self._home.wake_others()
        if await _left(partial(self._home.unfollowed, key), FOLLOWING_SECONDS):
            raise Unavailable(
                "the agent is deleted here, but not all nodes have deleted its files yet; repeat this to wait for them",
                retry_after=1.0,
            )

    async def _objects_deleted(self, key: AgentKey) -> None:
        """Wait until nothing of the agent is in the object store. Raises Unavailable."""
        if self._replicator is not None:
            self._replicator.hurry()
            seconds, advice = self._replicator.seconds, "they will be when it answers; repeat this to wait"
        elif self._home.is_own:
            seconds, advice = 0.0, "no object store is configured; start the store with the --remote that it had"
        else:
            seconds = FOLLOWING_SECONDS
            advice = "a node that has --remote deletes them, and none has yet; repeat this to wait"
        if left := await _left(partial(self._database.read, objects.waiting, key), seconds):
            raise Unavailable(
                f"the agent is deleted here, but {left} of its objects in the object store are not yet; {advice}",
                retry_after=RETRY_SECONDS,
            )


async def _left(count: Callable[[], Awaitable[int]], seconds: float) -> int:
    """Wait until others have left nothing, for so many seconds; return how much is left."""
    end = time.monotonic() + seconds
    while (left := await count()) and time.monotonic() < end:  # noqa: ASYNC110 - rows that others write
        await asyncio.sleep(0.05)
    return left


def _name(name: str) -> str:
    return check_text("name", name, max_bytes=MAX_NAME_BYTES)


def _revision(field: str, value: bytes, version: int | None) -> bytes:
    """Return the revision that belongs to a version of a request; b"": any."""
    if check_revision(field, value) and version is None:
        raise InvalidArgument(field, f"needs {field.replace('revision', 'version')}")
    return value
