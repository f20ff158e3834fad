"""One turn from request to commit.

    model → open ledger → replay? → prepare → engine: prefill, decode → commit (fsync) → finished → settle → publish

Everything of one agent happens under its lock; blocks are written after it was let go. A turn that fails or is
cancelled before its commit leaves the ledger as it was; one whose commit was not answered may be in it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agentmem import layout, spans
from agentmem.conversations import message_hashes
from agentmem.errors import (
    Aborted,
    AgentmemError,
    Cancelled,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from agentmem.hints import TurnHints
from agentmem.keys import automatic_snapshot
from agentmem.shielding import release_frames
from agentmem.v1 import cache_store_pb2, inference_pb2
from inference_service.answers import delta, duration
from inference_service.domain import MessagesInput, TurnRequest
from inference_service.engine.generation import Generated, TurnJob
from inference_service.engine.thread import EngineThread
from inference_service.memory.ledger import NO_VERSION, Ledger, Version
from inference_service.memory.windows import capture_positions
from inference_service.metrics import WorkerMetrics
from inference_service.models.loading import LoadedModel
from inference_service.models.serving import Models
from inference_service.pool.admission import Demand, Room
from inference_service.pool.hot import HotState
from inference_service.storage.client import Commit, Opened, StoreClient, version_to_proto
from inference_service.text.places import message_places
from inference_service.turns.keeping import Keeper
from inference_service.turns.locks import AgentLocks
from inference_service.turns.measuring import TurnMeasures
from inference_service.turns.persisting import Persister
from inference_service.turns.planned import Prepared
from inference_service.turns.preparing import Preparer, check_tokens, check_tool_calls
from inference_service.turns.rooms import Rooms
from inference_service.turns.running import RunningTurn
from inference_service.turns.summarizing import Summarizer
from inference_service.turns.telling import found

log = logging.getLogger(__name__)


class TurnRunner:
    """Runs turns. Event loop only. `locks` is shared with what else changes agents."""

    def __init__(
        self,
        models: Models,
        engine: EngineThread,
        store: StoreClient,
        preparer: Preparer,
        keeper: Keeper,
        persister: Persister,
        rooms: Rooms,
        metrics: WorkerMetrics,
        *,
        locks: AgentLocks,
        hints: TurnHints,
        max_requests: int,
        stream_buffer: int,
    ) -> None:
        self._models = models
        self._engine = engine
        self._store = store
        self._preparer = preparer
        self._persister = persister
        self._rooms = rooms
        self._summarizer = Summarizer(engine, preparer, rooms)
        self._keeper = keeper
        self._measures = TurnMeasures(metrics)
        self._locks = locks
        self._hints = hints
        self._max_requests = max_requests
        metrics.requests_limit.set(max_requests)
        self._stream_buffer = stream_buffer
        self._turns: set[RunningTurn] = set()
        self._draining = False

    def start(self, request: TurnRequest) -> RunningTurn:
        """Begin a turn. Raises what is wrong with it, without side effect."""
        try:
            self._check_room(request)
        except AgentmemError as error:
            self._measures.refused(request, error)
            raise
        turn = RunningTurn(request, self._stream_buffer, self._hints.of(request.key))
        self._turns.add(turn)
        self._measures.arrived(turn)
        turn.task = asyncio.create_task(self._run(turn))
        turn.interrupt = turn.task.cancel
        turn.task.add_done_callback(lambda task: self._done(turn, task))
        return turn

    def _check_room(self, request: TurnRequest) -> None:
        if self._draining:
            raise Unavailable("the worker is shutting down")
        if not self._engine.alive:
            raise Unavailable("the engine thread has died; the worker must be restarted", retry_after=5)
        self._models.seat(request.key.model_id)
        if sum(not turn.ended for turn in self._turns) >= self._max_requests:
            raise ResourceExhausted(
                f"{self._max_requests} requests run or wait already; try again later, or raise --max-requests"
            )

    def abort(self, namespace: str, request_id: str) -> bool:
        """Cancel the turns with this request id; whether there were any."""
        found = [t for t in self._turns if (t.request.key.namespace, t.request.request_id) == (namespace, request_id)]
        for turn in found:
            turn.cancel()
        return bool(found)

    async def drain(self, grace: float) -> None:
        """Refuse new turns, give the running ones `grace` seconds, cancel the rest, wait until blocks are written."""
        self._draining = True
        tasks = [turn.task for turn in self._turns if turn.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
            for turn in self._turns:
                turn.cancel(Unavailable("the worker is shutting down"))
            await asyncio.wait(tasks, timeout=layout.LAST_SECONDS)
        await self._persister.flush(layout.LAST_SECONDS)

    def _end(self, turn: RunningTurn, error: Exception | None = None) -> None:
        """Tell the caller that the turn is over. What follows is between the engine and the store."""
        if not turn.ended:
            turn.end(error)
            turn.phases.end("" if turn.error is None else spans.failure_of(turn.error))
            self._measures.ended(turn)

    def _done(self, turn: RunningTurn, task: "asyncio.Task[None]") -> None:
        self._turns.discard(turn)
        error = Cancelled("the request was cancelled") if task.cancelled() else task.exception()
        if turn.ended and error is not None and error is not turn.error:
            log.error("after the end of a turn: %s", error, exc_info=error)
        self._end(turn, error if error is None or isinstance(error, Exception) else Internal(type(error).__name__))

    async def _run(self, turn: RunningTurn) -> None:
        try:
            await self._serve(turn)
        except BaseException as error:
            release_frames(error)
            raise

    async def _serve(self, turn: RunningTurn) -> None:
        request = turn.request
        turn.phases.enter("queue", turn.arrived, waits_for="agent")
        async with self._models.use(request.key.model_id) as model:
            check_tokens(request.input, model, request.sampling.logit_bias)
            check_tool_calls(request, model)
            await self._take_turn(turn, model)

    async def _take_turn(self, turn: RunningTurn, model: LoadedModel) -> None:
        request = turn.request
        async with self._holding(request):
            turn.phases.enter("match")
            hot = model.memory.hot.get(request.key)
            opened = await self._open(request, hot)
            if opened.turn is not None:
                _replay(turn, model, opened.turn)
                self._end_hint(turn)
                self._measures.replayed(turn)
                return
            if hot is not None and hot.version != opened.version:
                model.memory.hot.drop(request.key)
                hot = None
            known = hot.ledger if hot is not None else None
            planned = await self._preparer.plan(request, model, opened, known)
            if planned.wants_note:
                turn.phases.enter("summary")
                note = await self._summarizer.note(turn, model, opened, planned)
                planned = await self._preparer.plan(request, model, opened, known, note)
            turn.phases.enter("queue", waits_for="memory")
            demand = Demand(request.key, planned.lookup.own, planned.most_tokens, request.commits)
            async with self._rooms.enter(model, demand) as room:
                turn.phases.enter("load")
                prepared = await self._preparer.prepare(request, model, planned, room)
                turn.phases.tell(**found(prepared))
                await self._compute_and_commit(turn, model, prepared, room)

    @asynccontextmanager
    async def _holding(self, request: TurnRequest) -> AsyncIterator[None]:
        if request.anonymous:
            yield
        else:
            async with self._locks.hold(request.key):
                yield

    async def _open(self, request: TurnRequest, hot: HotState | None) -> Opened:
        if request.anonymous:
            return Opened(NO_VERSION, Ledger())
        known = hot.version if hot is not None else NO_VERSION
        return await self._store.open(request.key, known, request.request_id)

    def _end_hint(self, turn: RunningTurn) -> None:
        """The agent has had its turn, if it was one."""
        if turn.request.generates:
            self._hints.forget(turn.request.key, turn.hint)

    async def _compute_and_commit(self, turn: RunningTurn, model: LoadedModel, prepared: Prepared, room: Room) -> None:
        version: Version | None = None
        hashes: list[bytes] = []
        try:
            started, job = await self._compute(turn, model, prepared)
            generated = job.result
            turn.rest(generated.rest)
            finished = self._measures.finished(turn, prepared, generated)
            turn.phases.tell_request(generated_tokens=generated.sampled)
            if turn.request.commits:
                turn.phases.enter("commit")
                version, hashes = await self._commit(turn, model, prepared, generated, started, finished)
                turn.phases.leave()
                room.superseded = True
                finished.version.CopyFrom(version_to_proto(version))
                finished.durable = True
        except Exception as error:
            self._end(turn, error)
            raise
        turn.say(inference_pb2.GenerateResponse(finished=finished))
        self._measures.completed(turn, prepared, generated)
        self._end(turn)
        if version is not None:
            await self._keeper.keep(turn.request.key, version, model, prepared, room, job, hashes)

    async def _compute(
        self, turn: RunningTurn, model: LoadedModel, prepared: Prepared
    ) -> tuple[inference_pb2.Started, TurnJob]:
        started = inference_pb2.Started()
        loop = asyncio.get_running_loop()

        def taken_up(at: float, seconds: float) -> None:
            loop.call_soon_threadsafe(self._announce, turn, model, prepared, started, at, seconds)

        plan = prepared.plan
        job = TurnJob(
            plan.sequence,
            prepared.reuse.caches,
            prepared.decoding,
            turn.token_from_engine,
            turn.cancelled,
            taken_up,
            prepared.reuse.tokens,
            capture_positions(plan.checkpoints, len(plan.sequence)) if turn.request.commits else (),
        )
        turn.generated = job.result
        turn.phases.enter("queue", waits_for="engine")
        turn.interrupt = None  # The engine looks at the flag before every step.
        self._engine.begin(lambda: model.engine.add(job), job.future)
        await self._engine.wait(job.future)
        turn.phases.computed(job, time.monotonic(), _failure(turn, job))
        turn.check()
        job.future.result()
        return started, job

    def _announce(
        self,
        turn: RunningTurn,
        model: LoadedModel,
        prepared: Prepared,
        started: inference_pb2.Started,
        taken_up: float,
        load_seconds: float,
    ) -> None:
        reuse = prepared.reuse
        dropped = prepared.dropped_tokens if turn.request.commits and not prepared.appended else 0
        started.MergeFrom(
            inference_pb2.Started(
                cache=prepared.report,
                base=version_to_proto(prepared.base),
                queue=duration(taken_up - turn.arrived - reuse.load_seconds),
                load=duration(reuse.load_seconds + load_seconds),
                context_remaining=prepared.context_remaining,
                appended=prepared.appended,
                dropped_tokens=dropped,
                dropped_snapshot=automatic_snapshot(prepared.base.number) if dropped else "",
                context_trim=prepared.context_trim(commits=turn.request.commits),
            )
        )
        turn.phases.taken_up(taken_up, load_seconds)
        turn.phases.tell_request(prompt_tokens=len(prepared.plan.sequence), **found(prepared))
        self._measures.taken_up(turn, prepared, taken_up, load_seconds)
        turn.started(started, model.tokenizer)

    async def _commit(
        self,
        turn: RunningTurn,
        model: LoadedModel,
        prepared: Prepared,
        generated: Generated,
        started: inference_pb2.Started,
        finished: inference_pb2.Finished,
    ) -> tuple[Version, list[bytes]]:
        """The version that it made, and the hash chain of its conversation."""
        turn.check()
        turn.committing = True
        request, plan = turn.request, prepared.plan
        token_ids = (*plan.sequence[prepared.keep_tokens :], *generated.token_ids)
        pieces = model.tokenizer.pieces(token_ids)
        ledger, keep = prepared.ledger, prepared.keep_tokens
        own = prepared.carried_turns[-1].end_token - keep if prepared.carried_turns else 0
        before = ledger.text[: ledger.offsets[keep - 1] if keep else 0] + b"".join(pieces[:own])
        prompt = b"".join(pieces[own : len(pieces) - len(generated.token_ids)])
        record = cache_store_pb2.TurnRecord(
            started=started,
            delta=delta(turn.tokens, model.tokenizer, generated.rest),
            finished=finished,
            messages=message_places(request.input, before, prompt, appended=prepared.appended),
        )
        hashes = [] if prepared.appended else _conversation(turn, record.delta)
        commit = Commit(
            base=prepared.base,
            keep_tokens=prepared.keep_tokens,
            token_ids=token_ids,
            pieces=pieces,
            tokenizer_hash=model.tokenizer.hash,
            generated_tokens=len(generated.token_ids),
            request_id=request.request_id,
            request_digest=request.digest,
            record=record,
            message_hashes=hashes,
            label=request.label,
            expiry=request.expiry,
            template_time=prepared.ledger.template_time,
            ends_turn_hint=request.generates and self._hints.of(request.key) is turn.hint,
            snapshot_version=prepared.snapshot_version,
            carried_turns=prepared.carried_turns,
            opening_bytes=prepared.opening_bytes,
            context_policy=request.context_policy,
        )
        version, replayed = await self._store.commit(request.key, commit)
        self._end_hint(turn)
        if replayed is not None:
            raise Aborted("another writer committed this request_id meanwhile; send it again to get its answer")
        return version, hashes


def _failure(turn: RunningTurn, job: TurnJob) -> str:
    """The name of the status that a turn has which the engine is through with; empty if it went well."""
    error = turn.error or (None if job.future.cancelled() else job.future.exception())
    if error is not None:
        return spans.failure_of(error)
    return spans.CANCELLED if job.future.cancelled() or turn.cancelled.is_set() else ""


def _conversation(turn: RunningTurn, said: inference_pb2.Delta) -> list[bytes]:
    """The hash chain of a whole chat with its answer, as the client will send that back."""
    chat = turn.request.input
    if not isinstance(chat, MessagesInput):
        return []
    answer = (_message(said),) if turn.request.generates else ()
    return message_hashes((*chat.messages, *answer), chat.tools, chat.template_arguments)


def _message(said: inference_pb2.Delta) -> dict[str, Any]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
        for call in said.tool_calls
    ]
    return {"role": "assistant", "content": said.text, "tool_calls": calls or None}


def _replay(turn: RunningTurn, model: LoadedModel, committed: cache_store_pb2.CommittedTurn) -> None:
    if committed.request_digest != turn.request.digest:
        raise InvalidArgument("request_id", "was used for a turn with other arguments; choose another")
    record = committed.record
    turn.started(record.started, model.tokenizer)
    if record.delta.ByteSize():
        turn.say(inference_pb2.GenerateResponse(delta=record.delta))
    finished = record.finished
    finished.version.CopyFrom(committed.version)
    finished.durable = finished.replayed = True
    turn.say(inference_pb2.GenerateResponse(finished=finished))
