"""Requests that run turns, in any dialect."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar
from urllib.parse import quote

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from agentmem import errors
from agentmem.v1 import inference_pb2, model_pb2, types_pb2
from agentmem.words import cached_tokens, short_name, warning
from gateway.agent_finder import Finder, How, Memory, Wanted
from gateway.api.exchange import Exchange, Incoming
from gateway.api.kept_responses import references
from gateway.api.messages import to_count, token_count
from gateway.api.messages_schema import CountTokensRequest
from gateway.api.responses_schema import ResponseRequest
from gateway.api.validation import parse_body
from gateway.edge.callers import caller
from gateway.http.kept_responses import KeptResponses
from gateway.http.middleware import log_fields, whole
from gateway.http.requests import AGENT_HEADER, WARNING_HEADER, TurnHeaders, read_body, read_headers, worked
from gateway.http.streaming import begun, send_events, until_disconnect
from gateway.metrics import GatewayMetrics
from gateway.settings import GatewaySettings
from gateway.worker import Worker

_LOOKS = 3
"""Looks for an agent that has always gone on meanwhile, before the request gets one of its own."""

_QUEUED: Final = 64

Event: TypeAlias = tuple[int, inference_pb2.GenerateResponse]
"""An event, with the number of its choice."""
Events: TypeAlias = AsyncGenerator[Event, None]

_Schema = TypeVar("_Schema", bound=BaseModel)


@dataclass(frozen=True)
class Turns:
    worker: Worker
    finder: Finder
    settings: GatewaySettings
    metrics: GatewayMetrics
    kept: KeptResponses

    async def completed(self, asked: BaseModel) -> Any:
        """Add the default model and the items that the request refers to."""
        if getattr(asked, "model", None) is None:
            found: model_pb2.GetModelResponse = await self.worker.call(model_pb2.GetModelRequest())
            asked = asked.model_copy(update={"model": found.model.model_id})
        if isinstance(asked, ResponseRequest) and references(asked):
            return await self.kept.resolve(asked)
        return asked

    async def count(self, request: Request) -> Response:
        """Serve Anthropic's /v1/messages/count_tokens."""
        body = await read_body(request, self.settings.max_body_bytes)
        asked = await worked(body, parse_body, body, CountTokensRequest)
        log_fields(request.scope, model=asked.model or "")
        counting = self.worker.call(await worked(body, to_count, asked, caller().namespace))
        counted: inference_pb2.CountTokensResponse = await until_disconnect(request.receive, counting)
        return JSONResponse(token_count(asked, counted.tokens))


@dataclass(frozen=True)
class TurnEndpoint(Generic[_Schema]):
    """Bodies of `schema`, which `translate` makes an exchange of. It raises InvalidArgument."""

    shared: Turns
    schema: type[_Schema]
    translate: Callable[[_Schema, Incoming], Exchange]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        headers = read_headers(request.headers, TurnHeaders)
        log_fields(scope, agent=headers.agent)
        incoming = Incoming(caller().namespace, headers.turn, uuid.uuid4().hex, int(time.time()), headers.agent)
        body = await read_body(request, self.shared.settings.max_body_bytes)
        asked = await self.shared.completed(await worked(body, parse_body, body, self.schema))
        exchange = await worked(body, self.translate, asked, incoming)
        for turn in exchange.turns:
            turn.template_time = headers.template_time
            turn.memory_mode = headers.memory_mode
            if headers.history and turn.HasField("messages"):
                turn.messages.history = types_pb2.History.Value(f"HISTORY_{headers.history.upper()}")
        answering = Answering(self.shared, request, send, exchange)
        await until_disconnect(receive, answering.run(headers.turn, headers.agent, headers.name))


@dataclass(frozen=True)
class Answering:
    shared: Turns
    request: Request
    send: Send
    exchange: Exchange

    async def run(self, turn: str, agent: str, name: str = "") -> None:
        """Raises AgentmemError where nothing was sent. The names are empty where there is none."""
        first = self.exchange.turns[0]
        log_fields(self.request.scope, model=first.key.model_id)
        if turn and len(self.exchange.turns) > 1:
            raise errors.InvalidArgument("Idempotency-Key", "names one turn; ask for one choice with it")
        wanted = Wanted(
            namespace=first.key.namespace,
            model_id=first.key.model_id,
            agent_id=agent,
            name=name,
            # The dialect may give the turn another name than the key, but the same one to each attempt.
            turn=first.request_id if turn else "",
            previous=self.exchange.previous,
            messages=first.messages if first.HasField("messages") else None,
            label=self.exchange.label,
        )
        with self.shared.metrics.generation("http"):
            for look in range(_LOOKS, 0, -1):
                async with self.shared.finder.memory(wanted, fresh=look == 1) as memory:
                    choices = each_choice(self.shared.worker, _with_memory(self.exchange, memory))
                    async with begun(choices, streamed=self.exchange.streamed) as (begins, events):
                        try:
                            said = begins.result() if begins.done() else None
                        except errors.Aborted:  # by its last event where the stream has begun: no other look then
                            if memory.guessed and look > 1:
                                continue
                            raise
                        await self._answer(memory, said[1].started if said else inference_pb2.Started(), events)
                        return

    async def _answer(self, memory: Memory, started: inference_pb2.Started, events: AsyncIterator[Event]) -> None:
        answer = self.exchange.answer
        answer.agent_id = memory.agent_id
        answer.left_out = [*self.exchange.others, *self.exchange.left_out]
        self.shared.metrics.agents_resolved.labels(memory.how).inc()
        log_fields(self.request.scope, agent=memory.agent_id)
        headers, noted = self._headers(memory, started), self._noted(events, memory)
        if self.exchange.streamed:
            written = (answer.events(*each) async for each in noted)
            await send_events(written, answer, self.request.scope, self.send, self.shared.settings.stall_limit, headers)
        else:
            async for each in noted:
                answer.add(*each)
            response = JSONResponse(answer.body(), headers=headers)
            await response(self.request.scope, self.request.receive, self.send)

    def _headers(self, memory: Memory, started: inference_pb2.Started) -> dict[str, str]:
        media = self.exchange.left_out
        left_out = f"{' and '.join(media)} left out: this model reads text only" if media else ""
        said = "; ".join(filter(None, (left_out, warning(started))))
        agent = {AGENT_HEADER: quote(memory.agent_id, safe="")} if memory.agent_id else {}
        return {**agent, **({WARNING_HEADER: said} if said else {})}

    async def _noted(self, events: AsyncIterator[Event], memory: Memory) -> AsyncIterator[Event]:
        """The first choice's turn is the agent's, and the one that the log is about."""
        unfinished = len(self.exchange.turns)
        async for choice, event in events:
            finished = event.HasField("finished")
            unfinished -= finished
            if not unfinished:
                whole(self.request.scope)
            if choice == 0 and event.HasField("started"):
                match = short_name(types_pb2.Match.DESCRIPTOR, event.started.cache.match)
                log_fields(self.request.scope, match=match)
            elif choice == 0 and finished:
                memory.committed = event.finished.durable
                usage = event.finished.usage
                log_fields(
                    self.request.scope,
                    prompt_tokens=usage.prompt_tokens,
                    reused_tokens=cached_tokens(usage),
                    generated_tokens=usage.completion_tokens,
                )
            yield choice, event


def _with_memory(exchange: Exchange, memory: Memory) -> list[inference_pb2.GenerateRequest]:
    """Return the turns, the first as its agent's. Where that appends to a memory, others read it and keep nothing."""
    reads = memory.agent_id and memory.how is How.NAMED and _may_append(exchange.turns[0])
    turns = []
    for number, asked in enumerate(exchange.turns):
        if not (reads or (number == 0 and memory.agent_id)):
            turns.append(asked)
            continue
        turn = inference_pb2.GenerateRequest()
        turn.CopyFrom(asked)
        turn.key.agent_id = memory.agent_id
        if number == 0:
            turn.label = exchange.label
            if memory.if_version is not None:
                turn.if_version = memory.if_version
            if memory.if_revision:  # else the caller's own stays
                turn.if_revision = memory.if_revision
            if memory.expiry is not None:
                turn.expiry.CopyFrom(memory.expiry)
        else:
            turn.cache_policy = inference_pb2.CACHE_POLICY_READ_ONLY
            turn.ClearField("request_id")
        turns.append(turn)
    return turns


def _may_append(turn: inference_pb2.GenerateRequest) -> bool:
    if turn.memory_mode == inference_pb2.MEMORY_MODE_AUTO:
        return turn.HasField("messages") and all(each.role != "assistant" for each in turn.messages.messages)
    return turn.HasField("append") or turn.memory_mode == inference_pb2.MEMORY_MODE_APPEND


async def each_choice(worker: Worker, turns: Sequence[inference_pb2.GenerateRequest]) -> Events:
    """Yield the events of all turns, each in order. Raises AgentmemError. Closing the iterator cancels what runs.

    A first turn that is an agent's is committed before the others begin, which then find its prompt in memory; unless
    they are that agent's, too, and read the memory that it had before.
    """
    numbered = list(enumerate(turns))
    kept = bool(turns[0].key.agent_id)
    groups = [numbered[:1], numbered[1:]] if kept else [numbered]
    if kept and turns[-1].key.agent_id:
        groups.reverse()
    for group in filter(None, groups):
        if len(group) == 1:
            [(choice, turn)] = group
            async with aclosing(worker.stream(turn)) as events:
                async for event in events:
                    yield choice, event
        else:
            async with aclosing(_merged(worker, group)) as merged:
                async for choice, event in merged:
                    yield choice, event


async def _merged(worker: Worker, turns: Sequence[tuple[int, inference_pb2.GenerateRequest]]) -> Events:
    queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue(_QUEUED)

    async def run(choice: int, turn: inference_pb2.GenerateRequest) -> None:
        async with aclosing(worker.stream(turn)) as events:
            async for event in events:
                await queue.put((choice, event))

    async def run_all() -> None:
        failed = None
        try:
            async with asyncio.TaskGroup() as group:
                for choice, turn in turns:
                    group.create_task(run(choice, turn))
        except ExceptionGroup as several:
            failed = several.exceptions[0]
        await queue.put(failed)

    running = asyncio.create_task(run_all())
    try:
        while not isinstance(said := await queue.get(), Exception | None):
            yield said
        if said is not None:
            raise said
    finally:
        while not running.done():  # a failed group takes one cancellation for its own, and would wait for room
            running.cancel()
            await asyncio.wait({running}, timeout=0.1)
