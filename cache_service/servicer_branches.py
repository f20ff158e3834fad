"""The storage half of AgentService's branches: forks, snapshots, trims."""

import asyncio
from functools import partial
from typing import Any

import grpc

from agentmem import paging
from agentmem.errors import InvalidArgument, NotFound
from agentmem.expiry import IdleTimes
from agentmem.keys import AUTOMATIC_SNAPSHOT, AgentKey, check_text
from agentmem.shielding import to_its_end
from agentmem.v1 import agent_pb2 as pb
from cache_service import agent_conversions, branches, snapshots
from cache_service.agents import Agent
from cache_service.branches import Moved
from cache_service.database import Work
from cache_service.erasure import Erased
from cache_service.servicer_base import AgentServicerBase

Context = grpc.aio.ServicerContext[Any, Any]

MAX_NAME_BYTES = 128


class BranchServicer(AgentServicerBase):
    """Each RPC is one transaction of `branches` or `snapshots`; files that nobody uses any more go after it.

    They go even if the caller has gone meanwhile: without their rows nobody counts them, and only a start deletes them.
    """

    async def ForkAgent(self, request: pb.ForkAgentRequest, context: Context) -> pb.ForkAgentResponse:
        key = AgentKey.from_proto(request.key)
        fork = partial(
            branches.fork,
            key=key,
            target=key._replace(agent_id=check_text("new_agent_id", request.new_agent_id)),
            at_version=request.at_version if request.HasField("at_version") else None,
            keep_tokens=request.keep_tokens if request.HasField("keep_tokens") else None,
            idle_times=IdleTimes.from_proto(request.expiry, "expiry."),
            now=self._clock.now(),
        )
        return pb.ForkAgentResponse(agent=agent_conversions.agent_message(await self._database.write(fork)))

    async def TrimAgent(self, request: pb.TrimAgentRequest, context: Context) -> pb.TrimAgentResponse:
        trim = partial(
            branches.trim,
            key=AgentKey.from_proto(request.key),
            keep_tokens=request.keep_tokens,
            if_version=request.if_version if request.HasField("if_version") else None,
            now=self._clock.now(),
        )
        return pb.TrimAgentResponse(agent=agent_conversions.agent_message(await to_its_end(self._move(trim))))

    async def CreateSnapshot(self, request: pb.CreateSnapshotRequest, context: Context) -> pb.CreateSnapshotResponse:
        key, name = AgentKey.from_proto(request.key), _name(request.name)
        if name.startswith(AUTOMATIC_SNAPSHOT):
            raise InvalidArgument("name", f"must not begin with {AUTOMATIC_SNAPSHOT!r}")
        made = await self._database.write(partial(snapshots.create, key=key, name=name, now=self._clock.now()))
        return pb.CreateSnapshotResponse(snapshot=agent_conversions.snapshot_message(key, made))

    async def ListSnapshots(self, request: pb.ListSnapshotsRequest, context: Context) -> pb.ListSnapshotsResponse:
        key = AgentKey.from_proto(request.key)
        size = paging.asked_size(request)
        before = paging.number(request.page_token)
        found = await self._database.read(partial(snapshots.page, key=key, before=before, limit=size + 1))
        page, following = paging.cut(found, size, lambda snapshot: (str(snapshot.id),))
        return pb.ListSnapshotsResponse(
            snapshots=[agent_conversions.snapshot_message(key, snapshot) for snapshot in page],
            next_page_token=following,
        )

    async def RestoreSnapshot(self, request: pb.RestoreSnapshotRequest, context: Context) -> pb.RestoreSnapshotResponse:
        key, name = AgentKey.from_proto(request.key), _name(request.name)
        restore = partial(branches.restore, key=key, name=name, now=self._clock.now())
        return pb.RestoreSnapshotResponse(agent=agent_conversions.agent_message(await to_its_end(self._move(restore))))

    async def DeleteSnapshot(self, request: pb.DeleteSnapshotRequest, context: Context) -> pb.DeleteSnapshotResponse:
        await to_its_end(self._delete_snapshot(AgentKey.from_proto(request.key), _name(request.name)))
        return pb.DeleteSnapshotResponse()

    async def _delete_snapshot(self, key: AgentKey, name: str) -> None:
        missing, dropped = None, []
        try:
            dropped = await self._database.write(partial(snapshots.delete, key=key, name=name), erases=lambda _: True)
        except NotFound as error:  # perhaps because it was erased before, and could not be scrubbed
            missing = error
        await asyncio.wrap_future(self._blocks.unlink_dropped(dropped))
        erased = await self._blocks.erasures.finish(("snapshot", *key, name), Erased(missing is None))
        if missing is not None and not erased.things:
            raise missing

    async def _move(self, work: Work[Moved]) -> Agent:
        moved = await self._database.write(work)
        self._blocks.unlink_dropped(moved.dropped)
        return moved.agent


def _name(name: str) -> str:
    return check_text("name", name, max_bytes=MAX_NAME_BYTES)
