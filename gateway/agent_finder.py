"""Finds the agent that has had a conversation, where a request names none.

The hash chain of its messages finds the longest stored conversation that begins it. An older state, one that another
request is going on from, and an agent that somebody named are forked. Agents made here have ids of a form of their own.
"""

import asyncio
import hashlib
import logging
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum

from agentmem import errors
from agentmem.conversations import chain_of
from agentmem.limits import MAX_HASHES
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.words import is_conversation
from gateway.worker import Worker

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """`turn` is the request_id that a retry would have, too, `previous` that of the turn before. `name` becomes a part
    of the id of an agent that is made here.
    """

    namespace: str
    model_id: str
    agent_id: str = ""
    name: str = ""
    turn: str = ""
    previous: str = ""
    messages: types_pb2.Messages | None = None
    label: str = ""


class How(StrEnum):
    NAMED = "named"
    RETRIED = "retried"
    CONTINUED = "continued"
    FORKED = "forked"
    NEW = "new"
    NONE = "none"


@dataclass
class Memory:
    """Without an agent nothing is kept. Who runs the turn sets `committed`."""

    how: How
    agent_id: str = ""
    if_version: int | None = None
    if_revision: bytes = b""
    expiry: types_pb2.Expiry | None = None
    committed: bool = False

    @property
    def guessed(self) -> bool:
        """ABORTED means that the agent has gone on meanwhile, and another look helps."""
        return self.how in (How.RETRIED, How.CONTINUED, How.FORKED, How.NEW)


_Place = tuple[str, str, str]


class Finder:
    """Event loop only. `keep` conversations without a name; `expiry` is what agents made here get."""

    def __init__(self, worker: Worker, *, keep: bool, expiry: types_pb2.Expiry) -> None:
        self._worker = worker
        self._keep = keep
        self._expiry = expiry
        self._busy: set[_Place | None] = set()
        self._attempts: set[_Place | None] = set()
        self._erasing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def memory(self, wanted: Wanted, *, fresh: bool = False) -> AsyncIterator[Memory]:
        """Yield the agent of a request; `fresh`: a new one. A fork goes again, unless its turn is committed.

        Raises NotFound for an unknown `previous`, InvalidArgument where it is another agent's, and Aborted where
        another attempt at the turn runs.
        """
        # Attempts of a named agent wait for each other; one without a name is found only when it is committed.
        attempt = (wanted.namespace, wanted.model_id, wanted.turn) if wanted.turn and not wanted.agent_id else None
        if attempt in self._attempts:
            raise errors.Aborted("another request with this Idempotency-Key is running; try again for its answer")
        with _among(self._attempts, attempt):
            memory = await self._resolve(wanted, fresh=fresh)
            place = (wanted.namespace, wanted.model_id, memory.agent_id)
            with _among(self._busy, place if memory.guessed and place not in self._busy else None):
                try:
                    yield memory
                finally:
                    if memory.how is How.FORKED and not memory.committed and not wanted.turn:  # no retry comes back
                        self._erase(*place)

    async def _resolve(self, wanted: Wanted, *, fresh: bool) -> Memory:
        if wanted.agent_id and not wanted.previous:
            return Memory(How.NAMED, wanted.agent_id)
        if wanted.turn:  # before `previous`, whose agent has gone on where this is a retry
            found = await self._find(wanted, request_id=wanted.turn)
            if found.HasField("agent") and wanted.agent_id in ("", found.agent.key.agent_id):
                return _in_state(How.RETRIED, found.agent.key, found.version)
        if wanted.previous:
            return await self._after(wanted)
        if not self._keep or wanted.messages is None:
            return Memory(How.NONE)
        if not fresh:
            # The last hashes: a stored conversation ends close to where one that goes on from it begins.
            chain = (await asyncio.to_thread(chain_of, wanted.messages))[-MAX_HASHES:]
            found = await self._find(wanted, message_hashes=chain, label=wanted.label)
            if found.HasField("agent"):
                return await self._going_on(wanted, found)
        return self._new(wanted)

    async def _after(self, wanted: Wanted) -> Memory:
        found = await self._find(wanted, request_id=wanted.previous)
        hint = f"it was never kept on {wanted.model_id!r}, or is gone; send the whole conversation"
        gone = errors.NotFound("response", wanted.previous, hint)
        if not found.HasField("agent"):
            raise gone
        agent_id = found.agent.key.agent_id
        if wanted.agent_id not in ("", agent_id):
            raise errors.InvalidArgument(
                "X-Agent-ID", "previous_response_id is of another agent; leave one of them out"
            )
        if found.version == found.agent.version:
            return _in_state(How.CONTINUED, found.agent.key, found.version)
        if wanted.agent_id:
            raise errors.InvalidArgument(
                "X-Agent-ID", "the agent has gone on since previous_response_id; leave the header out to fork it there"
            )
        try:
            return await self._fork(wanted, found)
        except errors.NotFound:
            raise gone from None

    async def _going_on(self, wanted: Wanted, found: agent_pb2.FindAgentResponse) -> Memory:
        agent_id = found.agent.key.agent_id
        if (wanted.namespace, wanted.model_id, agent_id) in self._busy:
            return self._new(wanted)  # a fork would wait for the turn that runs; blocks are shared without one, too
        if is_conversation(agent_id) and found.version == found.agent.version:
            return _in_state(How.CONTINUED, found.agent.key, found.version)
        try:
            return await self._fork(wanted, found)
        except (errors.NotFound, errors.Aborted):  # gone, or gone on, since it was found
            return self._new(wanted)

    async def _fork(self, wanted: Wanted, found: agent_pb2.FindAgentResponse) -> Memory:
        source = found.agent.key
        request = agent_pb2.ForkAgentRequest(
            key=source,
            new_agent_id=_new_id(wanted.name),
            at_version=found.version.version,
            at_revision=found.version.revision,
            expiry=self._expiry,
        )
        try:
            made = (await self._worker.call(request)).agent
        except asyncio.CancelledError:  # it may be made all the same
            self._erase(source.namespace, source.model_id, request.new_agent_id)
            raise
        return _in_state(How.FORKED, made.key, made.version)

    def _new(self, wanted: Wanted) -> Memory:
        turn = "\0".join((wanted.namespace, wanted.model_id, wanted.turn)) if wanted.turn else ""
        return Memory(How.NEW, _new_id(wanted.name, turn), 0, expiry=self._expiry)

    async def _find(self, wanted: Wanted, **by: object) -> agent_pb2.FindAgentResponse:
        request = agent_pb2.FindAgentRequest(namespace=wanted.namespace, model_id=wanted.model_id, **by)  # type: ignore[arg-type]
        found: agent_pb2.FindAgentResponse = await self._worker.call(request)
        return found

    def _erase(self, namespace: str, model_id: str, agent_id: str) -> None:
        """Delete a fork that no request will come back to. If that fails, it expires."""
        key = types_pb2.AgentKey(namespace=namespace, agent_id=agent_id, model_id=model_id)

        async def erase() -> None:
            try:
                await self._worker.call(agent_pb2.DeleteAgentRequest(key=key, allow_missing=True))
            except errors.AgentmemError as error:
                log.info("an unused fork stays until it expires: %s", error.message)

        task = asyncio.create_task(erase())
        self._erasing.add(task)
        task.add_done_callback(self._erasing.discard)


def _in_state(how: How, key: types_pb2.AgentKey, version: types_pb2.AgentVersion) -> Memory:
    return Memory(how, key.agent_id, version.version, version.revision)


def _new_id(name: str, turn: str = "") -> str:
    """Return an id for an agent: the same for all attempts at `turn`, if that is given."""
    unique = hashlib.sha256(turn.encode()).hexdigest()[:32] if turn else uuid.uuid4().hex
    return f"conv-{name}-{unique}" if name else f"conv-{unique}"


@contextmanager
def _among(places: set[_Place | None], place: _Place | None) -> Iterator[None]:
    if place is None:
        yield
        return
    places.add(place)
    try:
        yield
    finally:
        places.discard(place)
