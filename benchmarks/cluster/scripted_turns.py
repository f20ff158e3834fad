"""InferenceService of a worker that computes nothing: its turns take a scripted time.

Towards the store it does as the real worker. What a request has as input and sampling changes nothing.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from agentmem.errors import Aborted, InvalidArgument, NotFound, ResourceExhausted
from agentmem.kv.ledger import NO_VERSION, Version, other_revision
from agentmem.v1 import cache_store_pb2, inference_pb2, inference_pb2_grpc, types_pb2
from agentmem.validation import MAX_REQUEST_ID_BYTES, AgentKey, IdleTimes, check_revision, check_text
from benchmarks.cluster.lists import TOKENIZER, is_element, ledger_of, listed
from inference_service.domain import TextInput, TurnRequest
from inference_service.storage.client import Opened, StoreClient

CONTEXT_LENGTH: Final = 1 << 20


_NOT_REPEATED: Final = ("request_id", "if_version", "if_revision", "memory_mode", "expiry", "context_policy")
"""A retry may differ in these; the real worker's list is beside imports of tokenizers."""


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
    _requests: int = 0

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.script.slots)

    def lock(self, key: AgentKey) -> asyncio.Lock:
        return self._locks[key]

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        asked = turn_request(request)
        async with self._admitted(asked):
            async for event in self._events(asked):
                yield event

    async def Prefill(self, request: inference_pb2.PrefillRequest, context: Any) -> inference_pb2.PrefillResponse:
        asked, response = turn_request(request), inference_pb2.PrefillResponse()
        async with self._admitted(asked):
            async for event in self._events(asked):
                if event.HasField("started"):
                    response.started.CopyFrom(event.started)
                elif event.HasField("finished"):
                    response.finished.CopyFrom(event.finished)
        return response

    async def open(self, key: AgentKey, request_id: str = "") -> tuple[Opened, Hot, bool]:
        """Return the store's answer, the agent's memory, and whether that was hot. Call it under the agent's lock."""
        hot = self.hot.get(key, Hot(NO_VERSION, ()))
        opened = await self.store.open(key, hot.version, request_id)
        if hot.version == opened.version:
            return opened, hot, hot.version != NO_VERSION
        self.hot.pop(key, None)
        return opened, Hot(opened.version, listed(opened.ledger) if opened.ledger is not None else ()), False

    @asynccontextmanager
    async def _admitted(self, asked: TurnRequest) -> AsyncIterator[None]:
        if asked.key.model_id != self.script.model_id:
            raise NotFound("model", asked.key.model_id, f"there is {self.script.model_id!r}")
        if self._requests >= self.script.max_requests:
            raise ResourceExhausted(f"{self.script.max_requests} requests run or wait already; try again later")
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    async def _events(self, asked: TurnRequest) -> AsyncIterator[inference_pb2.GenerateResponse]:
        if asked.anonymous:
            async for event in self._computed(asked, Hot(NO_VERSION, ()), was_hot=False):
                yield event
            return
        async with self.lock(asked.key):
            opened, memory, was_hot = await self.open(asked.key, asked.request_id)
            if opened.turn is not None:
                for event in _replayed(asked, opened.turn):
                    yield event
                return
            _check_version(asked, memory.version)
            async for event in self._computed(asked, memory, was_hot=was_hot):
                yield event

    async def _computed(
        self, asked: TurnRequest, memory: Hot, *, was_hot: bool
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        async with self._slots:
            started = _started_from(memory, was_hot=was_hot)
            yield inference_pb2.GenerateResponse(started=started)
            await asyncio.sleep(self.script.seconds + (0 if was_hot else self.script.cold_seconds))
            said = (*memory.request_ids, asked.request_id)
            delta = inference_pb2.Delta(text="\n".join(said), token_ids=[1]) if asked.generates else None
            if delta is not None:
                yield inference_pb2.GenerateResponse(delta=delta)
            await asyncio.sleep(self.script.answer_seconds)
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


def turn_request(request: inference_pb2.GenerateRequest | inference_pb2.PrefillRequest) -> TurnRequest:
    """Raises InvalidArgument."""
    generates = isinstance(request, inference_pb2.GenerateRequest)
    policy = inference_pb2.CACHE_POLICY_UNSPECIFIED
    if isinstance(request, inference_pb2.GenerateRequest):
        policy = request.cache_policy
    asked = TurnRequest(
        key=AgentKey.from_proto(request.key, anonymous=generates),
        input=TextInput(""),
        digest=_digest(request),
        request_id=check_text("request_id", request.request_id, max_bytes=MAX_REQUEST_ID_BYTES, allow_empty=True),
        if_version=request.if_version if request.HasField("if_version") else None,
        if_revision=check_revision("if_revision", request.if_revision),
        cache_policy=policy or inference_pb2.CACHE_POLICY_KEEP,
        generates=generates,
        label=check_text("label", request.label, allow_empty=True),
        expiry=IdleTimes.from_proto(request.expiry, "expiry."),
        context_policy=request.context_policy,
    )
    if asked.commits and not is_element(asked.request_id):
        raise InvalidArgument("request_id", "must be one line of text: it is what a scripted worker appends")
    return asked


def _digest(request: inference_pb2.GenerateRequest | inference_pb2.PrefillRequest) -> bytes:
    arguments = cast(Any, type(request)())
    arguments.CopyFrom(request)
    for name in _NOT_REPEATED:
        if name in arguments.DESCRIPTOR.fields_by_name:
            arguments.ClearField(name)
    return hashlib.sha256(arguments.SerializeToString(deterministic=True)).digest()


def _check_version(asked: TurnRequest, version: Version) -> None:
    if asked.if_version not in (None, version.number):
        raise Aborted(f"the agent is at version {version.number}, not {asked.if_version}")
    if asked.if_revision not in (b"", version.revision):
        raise Aborted(other_revision(version.number))


def _started_from(memory: Hot, *, was_hot: bool) -> inference_pb2.Started:
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
