"""InferenceService of a worker that computes nothing: its turns take a scripted time.

Towards the store it does as the real worker.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from agentmem.errors import Aborted, Cancelled, InvalidArgument, NotFound, ResourceExhausted
from agentmem.kv.ledger import NO_VERSION, Version, other_revision
from agentmem.v1 import cache_store_pb2, inference_pb2, inference_pb2_grpc, types_pb2
from agentmem.validation import AgentKey
from benchmarks.cluster.lists import TOKENIZER, ledger_of, listed
from benchmarks.cluster.scripted_requests import turn_request
from inference_service.domain import TurnRequest
from inference_service.storage.client import Opened, StoreClient

CONTEXT_LENGTH: Final = 1 << 20
"""Turns that an agent may have."""


@dataclass(frozen=True)
class Script:
    """Seconds of turns: `seconds` to the answer, `cold_seconds` more if not hot, `answer_seconds` to the commit.
    `slots` run at once; beyond `max_requests` turns are refused."""

    model_id: str = "scripted"
    seconds: float = 0.0
    cold_seconds: float = 0.0
    slots: int = 8
    max_requests: int = 64
    answer_seconds: float = 0.0


class Hot(NamedTuple):
    """An agent's memory, as the worker takes it to be."""

    version: Version
    request_ids: tuple[str, ...]


@dataclass(eq=False)
class ScriptedTurns(inference_pb2_grpc.InferenceServiceServicer):
    """Turns append their request_id to their agent's list, and answer with all of it: the memory that they had.
    Event loop."""

    store: StoreClient
    script: Script
    hot: dict[AgentKey, Hot] = field(default_factory=dict)
    _locks: dict[AgentKey, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    _running: dict[tuple[str, str], asyncio.Event] = field(default_factory=dict)
    _requests: int = 0

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.script.slots)

    def lock(self, key: AgentKey) -> asyncio.Lock:
        return self._locks[key]

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        asked = turn_request(request)
        async with self._admitted(asked) as aborted:
            async for event in self._events(asked, aborted):
                yield event

    async def Prefill(self, request: inference_pb2.PrefillRequest, context: Any) -> inference_pb2.PrefillResponse:
        asked, response = turn_request(request), inference_pb2.PrefillResponse()
        async with self._admitted(asked) as aborted:
            async for event in self._events(asked, aborted):
                if event.HasField("started"):
                    response.started.CopyFrom(event.started)
                elif event.HasField("finished"):
                    response.finished.CopyFrom(event.finished)
        return response

    async def CountTokens(
        self, request: inference_pb2.CountTokensRequest, context: Any
    ) -> inference_pb2.CountTokensResponse:
        return inference_pb2.CountTokensResponse(tokens=1, context_length=CONTEXT_LENGTH)

    async def Abort(self, request: inference_pb2.AbortRequest, context: Any) -> inference_pb2.AbortResponse:
        aborted = self._running.get((request.namespace, request.request_id))
        if aborted is not None:
            aborted.set()
        return inference_pb2.AbortResponse(aborted=aborted is not None)

    async def open(self, key: AgentKey, request_id: str = "") -> tuple[Opened, Hot, bool]:
        """Return the store's answer, the agent's memory, and whether that was hot. Call it under the agent's lock."""
        hot = self.hot.get(key, Hot(NO_VERSION, ()))
        opened = await self.store.open(key, hot.version, request_id)
        if hot.version == opened.version:
            return opened, hot, hot.version != NO_VERSION
        self.hot.pop(key, None)
        return opened, Hot(opened.version, listed(opened.ledger) if opened.ledger is not None else ()), False

    @asynccontextmanager
    async def _admitted(self, asked: TurnRequest) -> AsyncIterator[asyncio.Event]:
        if asked.key.model_id != self.script.model_id:
            raise NotFound("model", asked.key.model_id, f"there is {self.script.model_id!r}")
        if self._requests >= self.script.max_requests:
            raise ResourceExhausted(f"{self.script.max_requests} requests run or wait already; try again later")
        name, aborted = (asked.key.namespace, asked.request_id), asyncio.Event()
        self._running[name] = aborted
        self._requests += 1
        try:
            yield aborted
        finally:
            self._requests -= 1
            if self._running.get(name) is aborted:
                del self._running[name]

    async def _events(
        self, asked: TurnRequest, aborted: asyncio.Event
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        if asked.anonymous:
            events = self._computed(asked, aborted, Hot(NO_VERSION, ()), was_hot=False)
            async for event in events:
                yield event
            return
        async with self.lock(asked.key):
            opened, memory, was_hot = await self.open(asked.key, asked.request_id)
            if opened.turn is not None:
                for event in _replayed(asked, opened.turn):
                    yield event
                return
            _check_version(asked, memory.version)
            async for event in self._computed(asked, aborted, memory, was_hot=was_hot):
                yield event

    async def _computed(
        self, asked: TurnRequest, aborted: asyncio.Event, memory: Hot, *, was_hot: bool
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        async with self._slots:
            started = started_from(memory, was_hot=was_hot)
            yield inference_pb2.GenerateResponse(started=started)
            await _compute(self.script.seconds + (0 if was_hot else self.script.cold_seconds), aborted)
            said = (*memory.request_ids, asked.request_id)
            delta = inference_pb2.Delta(text="\n".join(said), token_ids=[1]) if asked.generates else None
            if delta is not None:
                yield inference_pb2.GenerateResponse(delta=delta)
            await _compute(self.script.answer_seconds, aborted)
        finished = _finished(asked, memory, was_hot=was_hot)
        if asked.commits:
            record = cache_store_pb2.TurnRecord(started=started, delta=delta, finished=finished)
            commit = asyncio.create_task(self._commit(asked, memory, record))
            try:
                finished.version.CopyFrom((await asyncio.shield(commit)).to_proto())
            finally:
                await asyncio.wait({commit})  # the agent is held until it is over, whoever has left
            finished.durable = True
        yield inference_pb2.GenerateResponse(finished=finished)

    async def _commit(self, asked: TurnRequest, memory: Hot, record: cache_store_pb2.TurnRecord) -> Version:
        own = ledger_of([asked.request_id])
        request = cache_store_pb2.CommitTurnRequest(
            key=asked.key.to_proto(),
            base=memory.version.to_proto(),
            keep_tokens=len(memory.request_ids),
            token_ids=own.token_ids.tolist(),
            text=own.text,
            offsets=own.offsets.tolist(),
            tokenizer_hash=TOKENIZER,
            generated_tokens=len(own) if asked.generates else 0,
            request_id=asked.request_id,
            request_digest=asked.digest,
            record=record,
            label=asked.label,
            expiry=asked.expiry.to_proto(),
            context_policy=asked.context_policy,
        )
        version, replayed = await self.store.commit(request)
        if replayed is not None:
            raise Aborted("another writer committed this request_id meanwhile; send it again to get its answer")
        self.hot[asked.key] = Hot(version, (*memory.request_ids, asked.request_id))
        return version


async def _compute(seconds: float, aborted: asyncio.Event) -> None:
    """Raises Cancelled."""
    try:
        async with asyncio.timeout(seconds):
            await aborted.wait()
    except TimeoutError:
        return
    raise Cancelled("the request was aborted")


def _check_version(asked: TurnRequest, version: Version) -> None:
    if asked.if_version not in (None, version.number):
        raise Aborted(f"the agent is at version {version.number}, not {asked.if_version}")
    if asked.if_revision not in (b"", version.revision):
        raise Aborted(other_revision(version.number))


def started_from(memory: Hot, *, was_hot: bool) -> inference_pb2.Started:
    tokens = len(memory.request_ids)
    match = types_pb2.MATCH_EXTEND if memory.version != NO_VERSION else types_pb2.MATCH_NEW
    cache = types_pb2.CacheReport(match=match, cached=_cached(tokens, was_hot=was_hot), prompt_tokens=tokens)
    return inference_pb2.Started(
        cache=cache, base=memory.version.to_proto(), context_remaining=CONTEXT_LENGTH - tokens, appended=True
    )


def _cached(tokens: int, *, was_hot: bool) -> list[types_pb2.TierTokens]:
    return [types_pb2.TierTokens(tier=types_pb2.TIER_HOT, tokens=tokens)] if was_hot else []


def _finished(asked: TurnRequest, memory: Hot, *, was_hot: bool) -> inference_pb2.Finished:
    tokens, generates = len(memory.request_ids), asked.generates
    usage = types_pb2.Usage(
        prompt_tokens=tokens, cached=_cached(tokens, was_hot=was_hot), completion_tokens=int(generates)
    )
    reason = types_pb2.FINISH_REASON_STOP if generates else types_pb2.FINISH_REASON_PREFILLED
    return inference_pb2.Finished(reason=reason, usage=usage)


def _replayed(asked: TurnRequest, turn: cache_store_pb2.CommittedTurn) -> list[inference_pb2.GenerateResponse]:
    if turn.request_digest != asked.digest:
        raise InvalidArgument("request_id", "was used for a turn with other arguments; choose another")
    finished = turn.record.finished
    finished.version.CopyFrom(turn.version)
    finished.durable = finished.replayed = True
    said = [inference_pb2.GenerateResponse(delta=turn.record.delta)] if turn.record.delta.ByteSize() else []
    return [
        inference_pb2.GenerateResponse(started=turn.record.started),
        *said,
        inference_pb2.GenerateResponse(finished=finished),
    ]
