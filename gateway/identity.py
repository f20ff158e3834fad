"""Whose memory a request means, where it does not say: the agent that has had this conversation.

The longest stored conversation that begins the one at hand is found by the hash chain of its messages. The worker then
compares the prompt with that agent's ledger as text, so a wrong find could cost time and never reuse what isn't equal.
Conversations that share a beginning fork: an older state, a state that another request is going on from, and an agent
that somebody named are never gone on from themselves. Agents made here have ids of a form of their own, and expire.
"""

import asyncio
import logging
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from agentmem import errors
from agentmem.conversations import chain_of
from agentmem.v1 import agent_pb2, agent_pb2_grpc, types_pb2
from gateway import upstream

log = logging.getLogger(__name__)

_FOUND_BY_CONTENT = re.compile(r"conv-[0-9a-f]{32}")


@dataclass(frozen=True)
class Wanted:
    """What a request says of its agent.

    `agent_id`: its name. `turn`: the request_id that a retry would have, too. `previous`: the request_id of the turn
    that it follows. `messages`: its conversation, None where it has none. `label`: what narrows the search.
    """

    namespace: str
    model_id: str
    agent_id: str = ""
    turn: str = ""
    previous: str = ""
    messages: types_pb2.Messages | None = None
    label: str = ""


@dataclass
class Memory:
    """The agent of a request; no agent_id: nothing is kept. Whoever runs the turn sets `committed`.

    `guessed`: the agent was found, so ABORTED means that it has gone on meanwhile, and another look helps.
    """

    agent_id: str
    if_version: int | None = None
    expiry: types_pb2.Expiry | None = None
    guessed: bool = False
    committed: bool = False


class Finder:
    """Finds agents, for one gateway. Event loop only.

    `keep` says whether conversations without a name are kept; `expiry` is what agents made here get.
    """

    def __init__(self, channel: grpc.aio.Channel, *, keep: bool, expiry: types_pb2.Expiry) -> None:
        self._agents = agent_pb2_grpc.AgentServiceStub(channel)
        self._keep = keep
        self._expiry = expiry
        self._busy: set[tuple[str, str, str]] = set()
        self._erasing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def memory(self, wanted: Wanted, *, fresh: bool = False) -> AsyncIterator[Memory]:
        """The agent of a request, while it is served. `fresh`: look no further, begin a new one.

        A fork that was made for the request goes again, unless its turn was committed. Raises NotFound for an unknown
        `previous`, InvalidArgument where it is another agent's, and what the worker refuses.
        """
        memory, forked = await self._resolve(wanted, fresh=fresh)
        place = (wanted.namespace, wanted.model_id, memory.agent_id)
        entered = memory.guessed and place not in self._busy
        if entered:
            self._busy.add(place)
        try:
            yield memory
        finally:
            if entered:
                self._busy.discard(place)
            if forked and not memory.committed:
                self._erase(wanted, memory.agent_id)

    async def _resolve(self, wanted: Wanted, *, fresh: bool) -> tuple[Memory, bool]:
        if wanted.previous:
            return await self._after(wanted)
        if wanted.agent_id:
            return Memory(wanted.agent_id), False
        if wanted.turn:
            found = await self._find(wanted, request_id=wanted.turn)
            if found.HasField("agent"):
                return Memory(found.agent.key.agent_id), False
        if not self._keep or wanted.messages is None:
            return Memory(""), False
        if not fresh:
            chain = await asyncio.to_thread(chain_of, wanted.messages)
            found = await self._find(wanted, message_hashes=chain, label=wanted.label)
            if found.HasField("agent"):
                return await self._going_on(wanted, found)
        return self._new(), False

    async def _after(self, wanted: Wanted) -> tuple[Memory, bool]:
        found = await self._find(wanted, request_id=wanted.previous)
        if not found.HasField("agent"):
            raise errors.NotFound(
                "response",
                wanted.previous,
                f"it was never kept on {wanted.model_id!r}, or is gone; send the whole chat",
            )
        agent_id = found.agent.key.agent_id
        if wanted.agent_id not in ("", agent_id):
            raise errors.InvalidArgument(
                "X-Agent-ID", "previous_response_id is of another agent; leave one of them out"
            )
        if found.version == found.agent.version:
            return Memory(agent_id, found.version.version, guessed=True), False
        if wanted.agent_id:
            raise errors.InvalidArgument(
                "X-Agent-ID", "the agent has gone on since previous_response_id; leave the header out to fork it there"
            )
        return await self._fork(found)

    async def _going_on(self, wanted: Wanted, found: agent_pb2.FindAgentResponse) -> tuple[Memory, bool]:
        agent_id = found.agent.key.agent_id
        if (wanted.namespace, wanted.model_id, agent_id) in self._busy:
            return self._new(), False  # a fork would wait for the turn that runs; blocks are shared without one, too
        ours = _FOUND_BY_CONTENT.fullmatch(agent_id) is not None
        if ours and found.version == found.agent.version:
            return Memory(agent_id, found.version.version, guessed=True), False
        try:
            return await self._fork(found)
        except (errors.NotFound, errors.Aborted):  # gone, or gone on, since it was found
            return self._new(), False

    async def _fork(self, found: agent_pb2.FindAgentResponse) -> tuple[Memory, bool]:
        memory = self._new()
        request = agent_pb2.ForkAgentRequest(
            key=found.agent.key, new_agent_id=memory.agent_id, at_version=found.version.version
        )
        made = (await upstream.result(self._agents.ForkAgent(request))).agent
        times = agent_pb2.SetAgentTtlRequest(key=made.key)
        if self._expiry.HasField("ttl"):
            times.ttl.CopyFrom(self._expiry.ttl)
        if self._expiry.HasField("delete_after"):
            times.delete_after.CopyFrom(self._expiry.delete_after)
        await upstream.result(self._agents.SetAgentTtl(times))
        memory.if_version = made.version.version
        return memory, True

    def _new(self) -> Memory:
        return Memory(f"conv-{uuid.uuid4().hex}", 0, self._expiry, guessed=True)

    async def _find(self, wanted: Wanted, **by: object) -> agent_pb2.FindAgentResponse:
        request = agent_pb2.FindAgentRequest(namespace=wanted.namespace, model_id=wanted.model_id, **by)  # type: ignore[arg-type]
        found: agent_pb2.FindAgentResponse = await upstream.result(self._agents.FindAgent(request))
        return found

    def _erase(self, wanted: Wanted, agent_id: str) -> None:
        """Delete a fork that nobody will come back to. If that fails, it expires."""
        key = types_pb2.AgentKey(namespace=wanted.namespace, agent_id=agent_id, model_id=wanted.model_id)

        async def erase() -> None:
            try:
                await upstream.result(
                    self._agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=key, allow_missing=True))
                )
            except errors.AgentmemError as error:
                log.info("an unused fork stays until it expires: %s", error.message)

        task = asyncio.create_task(erase())
        self._erasing.add(task)
        task.add_done_callback(self._erasing.discard)
