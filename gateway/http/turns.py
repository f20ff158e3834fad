"""Requests that run turns, in any dialect: read, translated, given an agent, run, answered at once or as a stream."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse
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
from gateway.http.choices import Events, each_choice, may_append
from gateway.http.kept_responses import KeptResponses
from gateway.http.middleware import as_our_error, broke_off, log_fields, whole
from gateway.http.requests import AGENT_HEADER, WARNING_HEADER, TurnHeaders, parsed_body, read_headers
from gateway.http.streaming import EventStream, ReaderStalled, until_disconnect, until_it_begins
from gateway.metrics import GatewayMetrics
from gateway.settings import GatewaySettings
from gateway.worker import Worker

_LOOKS = 3
"""How often an agent is looked for that has always gone on meanwhile, before the request gets one of its own."""

_Schema = TypeVar("_Schema", bound=BaseModel)
_Event: TypeAlias = tuple[int, inference_pb2.GenerateResponse]


@dataclass(frozen=True)
class Turns:
    """What all endpoints share."""

    worker: Worker
    finder: Finder
    settings: GatewaySettings
    metrics: GatewayMetrics
    kept: KeptResponses

    async def completed(self, asked: BaseModel) -> Any:
        """Return a request with what it leaves to the server: the default model, items that it refers to."""
        if getattr(asked, "model", None) is None:
            found: model_pb2.GetModelResponse = await self.worker.call(model_pb2.GetModelRequest())
            asked = asked.model_copy(update={"model": found.model.model_id})
        return await self.kept.resolve(asked) if isinstance(asked, ResponseRequest) else asked

    @staticmethod
    def is_complete(asked: BaseModel) -> bool:
        """Return whether a request leaves nothing to the server."""
        refers = isinstance(asked, ResponseRequest) and bool(references(asked))
        return getattr(asked, "model", None) is not None and not refers


@dataclass(frozen=True)
class TurnEndpoint(Generic[_Schema]):
    """One endpoint as an ASGI application: bodies of `schema`, which `translate` makes an exchange of.

    `translate` raises InvalidArgument where parameters contradict each other.
    """

    shared: Turns
    schema: type[_Schema]
    translate: Callable[[_Schema, Incoming], Exchange]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        headers = read_headers(request.headers, TurnHeaders)
        log_fields(scope, agent=headers.agent)
        incoming = Incoming(caller().namespace, headers.turn, uuid.uuid4().hex, int(time.time()), headers.agent)

        def read(body: bytearray) -> _Schema | Exchange:
            asked = parse_body(body, self.schema)
            return self.translate(asked, incoming) if self.shared.is_complete(asked) else asked

        exchange = await parsed_body(request, self.shared.settings.max_body_bytes, read)
        if not isinstance(exchange, Exchange):
            asked = await until_disconnect(receive, self.shared.completed(exchange))
            exchange = await asyncio.to_thread(self.translate, asked, incoming)
        for each in exchange.turns:
            each.template_time = headers.template_time
            if headers.history and each.HasField("messages"):
                each.messages.history = types_pb2.History.Value(f"HISTORY_{headers.history.upper()}")
        await answer(self.shared, request, send, exchange, headers.turn, headers.agent, headers.memory_mode)


async def answer(
    shared: Turns,
    request: Request,
    send: Send,
    exchange: Exchange,
    turn: str,
    agent: str,
    mode: "inference_pb2.MemoryMode.ValueType | None" = None,
) -> None:
    """Run an exchange, whose request was read to its end, and answer it. Empty are the names of no `turn`, no `agent`.

    `mode` is how its turns relate to that agent's memory; None is as they say themselves. Raises AgentmemError where
    nothing of the answer was sent.
    """
    first = exchange.turns[0]
    log_fields(request.scope, model=first.key.model_id)
    if turn and len(exchange.turns) > 1:
        raise errors.InvalidArgument("Idempotency-Key", "names one turn; ask for one choice with it")
    wanted = Wanted(
        namespace=first.key.namespace,
        model_id=first.key.model_id,
        agent_id=agent,
        # The dialect may give the turn another name than the key, but the same one to each attempt.
        turn=first.request_id if turn else "",
        previous=exchange.previous,
        messages=first.messages if first.HasField("messages") else None,
        label=exchange.label,
    )
    if mode is not None:
        for asked in exchange.turns:
            asked.memory_mode = mode
    with shared.metrics.generation("http"):
        await until_disconnect(request.receive, _Run(shared, request, send, exchange, wanted).run())


@dataclass(frozen=True)
class _Run:
    """One exchange as it is run and answered."""

    shared: Turns
    request: Request
    send: Send
    exchange: Exchange
    wanted: Wanted

    async def run(self) -> None:
        """Answer the request. Raises AgentmemError where nothing of the answer was sent."""
        for look in range(1, _LOOKS + 1):
            async with self.shared.finder.memory(self.wanted, fresh=look == _LOOKS) as memory:
                turns = _with_memory(self.exchange, memory)
                self.exchange.answer.agent_id = memory.agent_id
                async with aclosing(each_choice(self.shared.worker, turns)) as choices, _asked(choices) as first:
                    if self.exchange.streamed:
                        # A client counts from the last thing it got, and a turn may wait for memory. What begins
                        # before the turn does is refused by its last event, and no other agent is looked for then.
                        await until_it_begins(first)
                    try:
                        if first.done() or not self.exchange.streamed:
                            await first
                    except errors.Aborted:
                        if memory.guessed and look < _LOOKS:
                            continue
                        raise
                    self.shared.metrics.agents_resolved.labels(memory.how).inc()
                    log_fields(self.request.scope, agent=memory.agent_id)
                    headers = {AGENT_HEADER: quote(memory.agent_id, safe="")} if memory.agent_id else {}
                    if text := self._warning(first):
                        headers[WARNING_HEADER] = text
                    await self._answer(self._noting(first, choices, memory), headers)
                    return

    def _warning(self, first: "asyncio.Future[_Event]") -> str:
        """Return what the caller may not have meant, as far as that is known."""
        media = self.exchange.left_out
        left_out = [f"{' and '.join(media)} left out: this model reads text only"] if media else []
        worker = warning(first.result()[1].started) if first.done() else ""
        return "; ".join([*left_out, *filter(None, [worker])])

    async def _noting(self, first: "asyncio.Future[_Event]", rest: Events, memory: Memory) -> Events:
        """Yield all events. The first choice's turn is the agent's, and the one that the log is about."""
        began = await first
        self._note(*began, memory)
        yield began
        async for choice, event in rest:
            self._note(choice, event, memory)
            yield choice, event

    def _note(self, choice: int, event: inference_pb2.GenerateResponse, memory: Memory) -> None:
        if choice == 0 and event.HasField("started"):
            log_fields(self.request.scope, match=short_name(types_pb2.Match.DESCRIPTOR, event.started.cache.match))
        elif choice == 0 and event.HasField("finished"):
            memory.committed = event.finished.durable
            usage = event.finished.usage
            log_fields(
                self.request.scope,
                prompt_tokens=usage.prompt_tokens,
                reused_tokens=cached_tokens(usage),
                generated_tokens=usage.completion_tokens,
            )

    async def _answer(self, events: Events, headers: dict[str, str]) -> None:
        answer = self.exchange.answer
        answer.left_out = [*self.exchange.others, *self.exchange.left_out]
        if self.exchange.streamed:
            stream = EventStream(self.send, self.shared.settings.stall_limit)
            await stream.start(headers.items())
            async with stream.kept_alive(answer.alive):
                await self._stream(events, stream)
            await stream.end()
        else:
            async for choice, event in events:
                answer.add(choice, event)
            response = JSONResponse(answer.body(), headers=headers)
            await response(self.request.scope, self.request.receive, self.send)

    async def _stream(self, events: Events, stream: EventStream) -> None:
        """Send all events of the stream. Raises ReaderStalled."""
        answer, unfinished = self.exchange.answer, len(self.exchange.turns)
        try:
            async for choice, event in events:
                unfinished -= event.HasField("finished")
                if not unfinished:
                    whole(self.request.scope)
                await stream.send(*answer.events(choice, event))
        except ReaderStalled:
            raise
        except Exception as error:  # noqa: BLE001 - a stream that began can only report its failure
            failure = as_our_error(error)
            broke_off(self.request.scope, failure)
            ending = answer.failed(failure)
        else:
            ending = answer.closing()
        await stream.send(*ending)


@asynccontextmanager
async def _asked(choices: Events) -> AsyncIterator["asyncio.Future[_Event]"]:
    """Yield the first event to come."""
    first = asyncio.ensure_future(anext(choices))
    try:
        yield first
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


def _with_memory(exchange: Exchange, memory: Memory) -> list[inference_pb2.GenerateRequest]:
    """Return the exchange's turns, the first one as its agent's.

    Where that appends to a memory, the other choices need the memory, too: they read it, and keep nothing.
    """
    reads = memory.agent_id and memory.how is How.NAMED and may_append(exchange.turns[0])
    turns = []
    for number, asked in enumerate(exchange.turns):
        if not (reads or (number == 0 and memory.agent_id)):
            turns.append(asked)
            continue
        turn = inference_pb2.GenerateRequest()
        turn.CopyFrom(asked)
        if number == 0:
            turn.key.agent_id = memory.agent_id
            turn.label = exchange.label
            if memory.if_version is not None:
                turn.if_version = memory.if_version
            if memory.if_revision:  # else the caller's own stays
                turn.if_revision = memory.if_revision
            if memory.expiry is not None:
                turn.expiry.CopyFrom(memory.expiry)
        else:
            turn.key.agent_id = memory.agent_id
            turn.cache_policy = inference_pb2.CACHE_POLICY_READ_ONLY
            turn.ClearField("request_id")
        turns.append(turn)
    return turns


@dataclass(frozen=True)
class CountEndpoint:
    """Anthropic's /v1/messages/count_tokens as an ASGI application."""

    shared: Turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        limit = self.shared.settings.max_body_bytes
        asked = await parsed_body(request, limit, lambda body: parse_body(body, CountTokensRequest))
        log_fields(scope, model=asked.model or "")
        counting = self.shared.worker.call(to_count(asked, caller().namespace))
        counted: inference_pb2.CountTokensResponse = await until_disconnect(receive, counting)
        response = JSONResponse(token_count(asked, counted.tokens))
        await response(scope, receive, send)
