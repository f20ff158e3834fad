from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Unpack

import grpc

from agentmem.client import inputs
from agentmem.client.answers import Answer, Growing, Version
from agentmem.client.connection import Connection, Deadline, Within, messages, pages
from agentmem.client.inputs import (
    UNSET,
    AskOptions,
    Beginning,
    Message,
    Policy,
    Said,
    Seconds,
    TellOptions,
    Tier,
    Timeout,
)
from agentmem.client.records import AgentInfo, Erased, Prefetched, Probe, Snapshot, TokenCount, Turn
from agentmem.client.stream import AsyncStream
from agentmem.client.transfers import Target, written
from agentmem.errors import InvalidArgument, NotFound
from agentmem.v1 import agent_pb2, inference_pb2, types_pb2

if TYPE_CHECKING:
    from agentmem.client.aio import AsyncClient


class AsyncAgent:
    """An agent, by its name, on a model. Making it sends no request; its first turn creates the memory.

    All methods raise AgentmemError.
    """

    def __init__(self, client: AsyncClient, name: str, model: str, beginning: Beginning) -> None:
        self.name = name
        self._client, self._model, self._beginning = client, model, beginning

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, model={self._model!r})"

    @property
    def _connection(self) -> Connection:
        return self._client.connection

    async def model(self, *, timeout: Timeout = UNSET) -> str:
        """Return its model's name, or the gateway's default."""
        return (await self._key(timeout)).model_id

    async def _key(self, timeout: Within) -> types_pb2.AgentKey:
        if not self._model:
            self._model = await self._client.default_model(timeout)
        return types_pb2.AgentKey(agent_id=self.name, model_id=self._model)

    async def _changed(self, rpc: str, timeout: Within, **fields: Any) -> AgentInfo:
        return AgentInfo.of((await self._asked(rpc, timeout, **fields)).agent)

    async def _asked(self, rpc: str, timeout: Within, **fields: Any) -> Any:
        deadline = self._connection.deadline(timeout)
        try:
            request = getattr(agent_pb2, f"{rpc}Request")(key=await self._key(deadline), **fields)
        except ValueError as error:  # a number out of range, or text that is not UTF-8
            raise InvalidArgument("request", str(error)) from error
        return await self._connection.call(request, deadline)

    # Turns

    async def ask(self, said: Said, **options: Unpack[AskOptions]) -> Answer:
        """Run a turn, and return the whole answer.

        A text is the user's. After an outage the turn is sent again under the same request_id, which never commits it
        twice. After DeadlineExceeded or Unavailable a retry under that request_id finds out whether it was committed.
        """
        return await self.stream(said, **options).finish()

    def stream(self, said: Said, **options: Unpack[AskOptions]) -> AsyncStream:
        """Run a turn, and return its answer as a stream, which begins when iterated and continues after outages."""

        async def prepare(deadline: Deadline) -> inference_pb2.GenerateRequest:
            return inputs.generate(await self._key(deadline), self._beginning, said, options)

        return AsyncStream(self._connection, prepare, options.get("timeout", UNSET))

    async def tell(self, said: Said, **options: Unpack[TellOptions]) -> Answer:
        """Add to the memory without an answer; the result has no text."""
        deadline = self._connection.deadline(options.get("timeout", UNSET))
        request = inputs.prefill(await self._key(deadline), self._beginning, said, options)
        response = await self._connection.call(request, deadline)
        return Growing().ended(response.started, response.finished, request.request_id)

    async def probe(self, said: Said, *, timeout: Timeout = UNSET) -> Probe:
        """Return what a turn with this input would reuse, and why not more."""
        append = types_pb2.Append(messages=inputs.chat_of(said))
        return Probe.of(await self._asked("ProbeAgent", timeout, append=append))

    async def count_tokens(self, said: Said, *, timeout: Timeout = UNSET) -> TokenCount:
        """Return how many tokens this input would add."""
        deadline = self._connection.deadline(timeout)
        append = types_pb2.Append(messages=inputs.chat_of(said))
        request = inference_pb2.CountTokensRequest(key=await self._key(deadline), append=append)
        counted = await self._connection.call(request, deadline)
        return TokenCount(counted.tokens, counted.context_length)

    # What is there

    async def info(self, *, timeout: Timeout = UNSET) -> AgentInfo:
        """Raises NotFound before the first turn."""
        return await self._changed("GetAgent", timeout)

    async def exists(self, *, timeout: Timeout = UNSET) -> bool:
        """Return whether it has a memory."""
        try:
            await self.info(timeout=timeout)
        except NotFound as error:
            if error.kind != "agent":
                raise
            return False
        return True

    async def turns(self, *, text: bool = False, timeout: Timeout = UNSET) -> AsyncIterator[Turn]:
        """Yield the turns, oldest first; with `text` also messages and text."""
        request = agent_pb2.ListTurnsRequest(key=await self._key(timeout), include_text=text)
        async with aclosing(pages(self._connection, request, "turns", Turn.of, timeout)) as found:
            async for turn in found:
                yield turn

    async def messages(self, *, timeout: Timeout = UNSET) -> list[Message]:
        """Return all messages, oldest first. Text that was not sent as a message has no role."""
        return [message async for turn in self.turns(text=True, timeout=timeout) for message in turn.messages]

    # Branches

    async def fork(
        self,
        name: str,
        *,
        at: Version | int | None = None,
        keep_tokens: int | None = None,
        ttl: Seconds | None = None,
        delete_after: Seconds | None = None,
        timeout: Timeout = UNSET,
    ) -> AsyncAgent:
        """Make a second agent with this memory.

        `at` is a version that is still kept; `keep_tokens` limits the fork to the first tokens. Raises AlreadyExists,
        also if the answer to this call was lost.
        """
        fields: dict[str, Any] = {"new_agent_id": name, "keep_tokens": keep_tokens}
        if at is not None:
            fields["at_version"] = at.version if isinstance(at, Version) else at
            fields["at_revision"] = at.revision if isinstance(at, Version) else b""
        if times := inputs.durations(ttl=ttl, delete_after=delete_after):
            fields["expiry"] = types_pb2.Expiry(**times)
        made = await self._asked("ForkAgent", timeout, **fields)
        return AsyncAgent(self._client, made.agent.key.agent_id, made.agent.key.model_id, self._beginning)

    async def snapshot(self, name: str, *, timeout: Timeout = UNSET) -> Snapshot:
        """Name the present state."""
        return Snapshot.of((await self._asked("CreateSnapshot", timeout, name=name)).snapshot)

    async def snapshots(self, *, timeout: Timeout = UNSET) -> AsyncIterator[Snapshot]:
        """Yield the snapshots, newest first."""
        request = agent_pb2.ListSnapshotsRequest(key=await self._key(timeout))
        async with aclosing(pages(self._connection, request, "snapshots", Snapshot.of, timeout)) as found:
            async for snapshot in found:
                yield snapshot

    async def restore(self, name: str, *, timeout: Timeout = UNSET) -> AgentInfo:
        """Return to a snapshot. The present state stays as an automatic snapshot."""
        return await self._changed("RestoreSnapshot", timeout, name=name)

    async def delete_snapshot(self, name: str, *, timeout: Timeout = UNSET) -> None:
        """Delete a snapshot, and what only it needs."""
        deadline = self._connection.deadline(timeout)
        request = agent_pb2.DeleteSnapshotRequest(key=await self._key(deadline), name=name)
        await self._connection.erase(request, deadline)

    async def trim(self, keep_tokens: int, *, only_if: Version | None = None, timeout: Timeout = UNSET) -> AgentInfo:
        """Keep the first tokens. The previous state stays as an automatic snapshot."""
        deadline = self._connection.deadline(timeout)
        state = only_if or (await self._changed("GetAgent", deadline)).version
        fields = {"if_version": state.version, "if_revision": state.revision}
        return await self._changed("TrimAgent", deadline, keep_tokens=keep_tokens, **fields)

    async def delete(self, *, all_models: bool = False, missing_ok: bool = False, timeout: Timeout = UNSET) -> Erased:
        """Erase the agent, on its model or on all: ledger, KV and snapshots."""
        deadline = self._connection.deadline(timeout)
        key = types_pb2.AgentKey(agent_id=self.name) if all_models else await self._key(deadline)
        request = agent_pb2.DeleteAgentRequest(key=key, allow_missing=missing_ok)
        gone = await self._connection.erase(request, deadline)
        return Erased(gone.deleted, gone.freed_bytes) if gone is not None else Erased(0, 0)

    async def pin(self, pinned: bool = True, *, timeout: Timeout = UNSET) -> AgentInfo:
        """Protect its KV on disk from eviction; with False end that."""
        return await self._changed("PinAgent", timeout, pinned=pinned)

    async def set_ttl(
        self, ttl: Seconds | None = None, *, delete_after: Seconds | None = None, timeout: Timeout = UNSET
    ) -> AgentInfo:
        """Set the idle times until its KV expires and until it is deleted; None: never."""
        times = inputs.durations(ttl=ttl, delete_after=delete_after)
        return await self._changed("SetAgentTtl", timeout, **times)

    async def set_context_policy(self, policy: Policy, *, timeout: Timeout = UNSET) -> AgentInfo:
        """Set what it does when its memory outgrows the context."""
        value = inputs.enum_value("policy", types_pb2.ContextPolicy, "CONTEXT_POLICY", policy)
        return await self._changed("SetContextPolicy", timeout, context_policy=value)

    async def prefetch(self, *, timeout: Timeout = UNSET) -> Prefetched:
        """Bring its KV into the worker's memory ahead of its turn."""
        moved = await self._asked("PrefetchAgent", timeout)
        return Prefetched(moved.tokens, moved.bytes)

    async def evict(self, tier: Tier = "hot", *, timeout: Timeout = UNSET) -> int:
        """Drop its KV from a tier and all faster ones. Return the bytes freed."""
        value = inputs.enum_value("tier", types_pb2.Tier, "TIER", tier)
        freed: int = (await self._asked("EvictAgent", timeout, tier=value)).freed_bytes
        return freed

    async def export(self, to: Target, *, timeout: Timeout = UNSET) -> int:
        """Write ledger and KV to a file. Return the number of bytes. Raises OSError.

        A path gets the file when it is complete, for its owner alone. An open file is written from its position.
        """
        deadline = self._connection.deadline(timeout)
        request = agent_pb2.ExportAgentRequest(key=await self._key(deadline))
        async with written(to) as file:
            start = file.tell() if file.seekable() else 0

            async def attempt(seconds: float | None) -> int:
                if file.seekable():
                    file.seek(start)
                    file.truncate()
                size, call = 0, self._connection.start(request, seconds)
                try:
                    async with aclosing(messages(self._connection, call)) as responses:
                        async for response in responses:
                            size += await asyncio.to_thread(file.write, response.chunk)
                except grpc.aio.AioRpcError as error:
                    if size and not file.seekable():  # what was written to a pipe stays there
                        raise self._connection.failure(error) from error
                    raise
                return size

            return await self._connection.run(attempt, deadline)
