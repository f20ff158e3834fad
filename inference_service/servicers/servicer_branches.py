"""Branches on the worker: forks, snapshots, trims and restores, hot where the pool has the blocks."""

from typing import Any

from agentmem.blockfile import BLOCK_TOKENS
from agentmem.errors import AgentmemError
from agentmem.keys import AgentKey, check_text
from agentmem.v1 import agent_pb2
from inference_service.memory.ledger import Ledger, Version
from inference_service.memory.match import common_length
from inference_service.pool.hot import HotState
from inference_service.pool.kv import Table
from inference_service.servicers.servicer_base import AgentServicerBase


class BranchServicer(AgentServicerBase):
    """What keeps or moves a state first waits until its KV is written, so that the store knows which files to keep."""

    async def ForkAgent(self, request: agent_pb2.ForkAgentRequest, context: Any) -> agent_pb2.ForkAgentResponse:
        key = AgentKey.from_proto(request.key)
        target = key._replace(agent_id=check_text("new_agent_id", request.new_agent_id))
        async with self._holding(key, target):
            await self._persister.settle(key)
            whole = not request.HasField("at_version") and not request.HasField("keep_tokens")
            shared = await self._present_hot(key) if whole else None
            response = await self._store.fork_agent(request)
            if shared is not None:
                self._share(shared, key, target, response.agent)
        self._complete(response.agent)
        return response

    async def TrimAgent(self, request: agent_pb2.TrimAgentRequest, context: Any) -> agent_pb2.TrimAgentResponse:
        key = AgentKey.from_proto(request.key)
        async with self._holding(key):
            await self._persister.settle(key)
            response = await self._store.trim_agent(request)
            await self._follow(key, response.agent)
        self._complete(response.agent)
        return response

    async def CreateSnapshot(
        self, request: agent_pb2.CreateSnapshotRequest, context: Any
    ) -> agent_pb2.CreateSnapshotResponse:
        key = AgentKey.from_proto(request.key)
        async with self._holding(key):
            await self._persister.settle(key)
            return await self._store.create_snapshot(request)

    async def ListSnapshots(
        self, request: agent_pb2.ListSnapshotsRequest, context: Any
    ) -> agent_pb2.ListSnapshotsResponse:
        AgentKey.from_proto(request.key)
        return await self._store.list_snapshots(request)

    async def RestoreSnapshot(
        self, request: agent_pb2.RestoreSnapshotRequest, context: Any
    ) -> agent_pb2.RestoreSnapshotResponse:
        key = AgentKey.from_proto(request.key)
        async with self._holding(key):
            await self._persister.settle(key)
            response = await self._store.restore_snapshot(request)
            await self._follow(key, response.agent)
        self._complete(response.agent)
        return response

    async def DeleteSnapshot(
        self, request: agent_pb2.DeleteSnapshotRequest, context: Any
    ) -> agent_pb2.DeleteSnapshotResponse:
        async with self._holding(AgentKey.from_proto(request.key)):
            return await self._store.delete_snapshot(request)

    async def _present_hot(self, key: AgentKey) -> HotState | None:
        """The agent's hot state, if it is the store's present one. Call it under the agent's lock."""
        loaded = self._models.loaded(key.model_id)
        state = loaded.memory.hot.get(key) if loaded is not None else None
        if state is None or (await self._store.open(key, state.version, peek=True)).version != state.version:
            return None
        return state

    def _share(self, state: HotState, source: AgentKey, target: AgentKey, agent: agent_pb2.Agent) -> None:
        """Let a fork have its parent's KV in the pool, unless it was evicted meanwhile."""
        loaded = self._models.loaded(source.model_id)
        if loaded is None or loaded.memory.hot.get(source) is not state:
            return
        loaded.memory.pool.acquire(state.table)
        version = Version(agent.version.uid, agent.version.version)
        loaded.memory.hot.put(target, HotState(version, state.ledger, state.table, state.windows))

    async def _follow(self, key: AgentKey, agent: agent_pb2.Agent) -> None:
        """Let hot state be that of the agent's new version: the full blocks that both ledgers begin with stay."""
        loaded = self._models.loaded(key.model_id)
        state = loaded.memory.hot.get(key) if loaded is not None else None
        if loaded is None or state is None or state.version == (agent.version.uid, agent.version.version):
            return
        try:
            opened = await self._store.open(key)
        except AgentmemError:
            self._drop_hot(key)  # The change is durable, and what memory has can be had from disk.
            return
        memory, ledger = loaded.memory, opened.ledger or Ledger()
        common = common_length(state.ledger.token_ids, ledger.token_ids)
        blocks = state.table.blocks[: common // BLOCK_TOKENS]
        if not blocks or memory.hot.get(key) is not state:
            self._drop_hot(key)
            return
        table = Table(len(blocks) * BLOCK_TOKENS, blocks)
        memory.pool.acquire(table)
        windows = {position: tokens for position, tokens in state.windows.items() if position <= common}
        memory.hot.put(key, HotState(opened.version, ledger, table, windows))
