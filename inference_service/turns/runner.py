"""One turn from request to commit. Read `TurnRunner._serve`:

    model → lock → open ledger → replay? → plan → reserve memory → restore KV → generate → commit (fsync) → keep KV

All of it is under the agent's lock; blocks are written later. A failure before the commit leaves the ledger as it was;
after an unanswered commit the turn may be in it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from agentmem import layout, tracing
from agentmem.errors import AgentmemError, Cancelled, Internal, ResourceExhausted, Unavailable
from agentmem.kv.hints import TurnHints
from agentmem.process.shielding import release_frames
from agentmem.v1 import inference_pb2, types_pb2
from agentmem.validation import automatic_snapshot
from inference_service.domain import TurnRequest
from inference_service.engine.generation import TurnJob
from inference_service.engine.scheduling import SMALLEST_CHUNK
from inference_service.engine.thread import EngineThread
from inference_service.memory.checkpoints import captures_by_worth
from inference_service.models.loaded import LoadedModel
from inference_service.models.serving import Models
from inference_service.pool.admission import MemoryRequest
from inference_service.storage.client import NOTHING, StoreClient
from inference_service.threads import WorkerThreads
from inference_service.turns.committing import commit, replay
from inference_service.turns.decoding import check_input, check_tool_calls
from inference_service.turns.locks import AgentLocks
from inference_service.turns.persisting import Persister
from inference_service.turns.planning import TurnPlanner, opened
from inference_service.turns.pool_writer import PoolWriter
from inference_service.turns.prompt_sharing import PromptSharing
from inference_service.turns.restored import Restored
from inference_service.turns.restoring import Restorer
from inference_service.turns.stream import TurnStream
from inference_service.turns.summarizing import Summarizer
from inference_service.turns.timing import duration
from inference_service.turns.turn import Turn
from inference_service.turns.turn_log import TurnLog, found

log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class TurnRunner:
    """Event loop only."""

    models: Models
    engine: EngineThread
    threads: WorkerThreads
    store: StoreClient
    planner: TurnPlanner
    summarizer: Summarizer
    restorer: Restorer
    pool_writer: PoolWriter
    persister: Persister
    turn_log: TurnLog
    locks: AgentLocks
    hints: TurnHints
    max_requests: int
    turn_ended: Callable[[], object] = lambda: None
    _turns: dict[Turn, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _draining: bool = field(default=False, init=False)

    def start(self, request: TurnRequest) -> TurnStream:
        """Begin a turn. Raises a request's mistakes, without side effect."""
        try:
            self._check_accepts(request)
        except AgentmemError as error:
            self.turn_log.refused(request, error)
            raise
        turn = Turn(request, self.hints.of(request.key))
        self.turn_log.arrived(turn)
        task = asyncio.create_task(self._run(turn))
        self._turns[turn] = task
        turn.stream.interrupt = task.cancel
        task.add_done_callback(lambda task: self._done(turn, task))
        return turn.stream

    def _check_accepts(self, request: TurnRequest) -> None:
        if self._draining:
            raise Unavailable("the worker is shutting down")
        self.engine.check()
        self.models.slot(request.key.model_id)
        if sum(not turn.stream.ended for turn in self._turns) >= self.max_requests:
            raise ResourceExhausted(
                f"{self.max_requests} requests run or wait already; try again later, or raise --max-requests"
            )

    def abort(self, namespace: str, request_id: str) -> bool:
        """Cancel turns of this request id; return whether any ends. Committed ones do not."""
        asked = namespace, request_id
        turns = [turn for turn in self._turns if not turn.stream.ended]
        found = [turn for turn in turns if (turn.request.key.namespace, turn.request.request_id) == asked]
        for turn in found:
            turn.stream.cancel()
        return any(turn.stream.cancelled.is_set() for turn in found)

    async def drain(self, grace: float) -> None:
        """Refuse new turns, cancel running ones after `grace` seconds, and write blocks."""
        self._draining = True
        tasks = list(self._turns.values())
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
            for turn in self._turns:
                turn.stream.cancel(Unavailable("the worker is shutting down"))
            await asyncio.wait(tasks, timeout=layout.LAST_SECONDS)
        await self.persister.flush(layout.LAST_SECONDS)

    def _end(self, turn: Turn, error: Exception | None = None) -> None:
        """Tell the caller that the turn is over."""
        if not turn.stream.ended:
            turn.stream.end(error)
            turn.timing.end("" if turn.stream.error is None else tracing.failure_of(turn.stream.error))
            self.turn_log.ended(turn)

    def _done(self, turn: Turn, task: "asyncio.Task[None]") -> None:
        del self._turns[turn]
        error = Cancelled("the request was cancelled") if task.cancelled() else task.exception()
        if turn.stream.ended and error is not None and error is not turn.stream.error:
            log.error("after the end of a turn: %s", error, exc_info=error)
        self._end(turn, error if error is None or isinstance(error, Exception) else Internal(type(error).__name__))
        self.turn_ended()

    @property
    def busy(self) -> bool:
        return bool(self._turns)

    async def _run(self, turn: Turn) -> None:
        try:
            await self._with_model(turn)
        except BaseException as error:
            release_frames(error)
            del turn  # The error has this frame, and the turn's stream has the error.
            raise

    async def _with_model(self, turn: Turn) -> None:
        """Not in `_run`, whose own frame cannot be released."""
        request = turn.request
        turn.timing.enter("queue", turn.timing.arrived, waits_for="agent")
        async with self.models.use(request.key.model_id) as model:
            check_input(request.input, model, request.sampling.logit_bias)
            check_tool_calls(request, model)
            async with self.locks.hold(*([] if request.anonymous else [request.key])):
                with model.engine.gathering.expecting(turn):
                    await self._serve(turn, model)

    async def _serve(self, turn: Turn, model: LoadedModel) -> None:
        """Run the turn, under the agent's lock."""
        request, timing = turn.request, turn.timing
        timing.enter("match")
        agent = NOTHING if request.anonymous else await opened(self.store, model, request.key, request.request_id)
        if agent.turn is not None:
            replay(turn, model, agent.turn, self.hints)
            self.turn_log.replayed(turn)
            return
        await self.planner.plan(turn, model, agent)
        if turn.wants_note:
            timing.enter("summary")
            model.engine.gathering.came(turn)  # The note's prompt does not wait for its own turn.
            note = await self.summarizer.note(turn, model, agent)
            await self.planner.plan(turn, model, agent, note)
        timing.enter("queue", waits_for="memory")
        captures = len(_captures(turn, model))
        captures += captures > 0  # the latest of a prompt that may be cancelled
        names = turn.lookup.own if self._reuses(turn) else ()
        memory = MemoryRequest(request.key, names, turn.most_tokens, captures)
        async with model.memory.reserve(memory) as turn.reservation:
            timing.enter("load")
            turn.restored = await self._restore(turn, model)
            timing.annotate(**found(turn))
            sharing = PromptSharing(turn, model, self.engine)
            try:
                async with self._generated(turn, model, sharing) as job:
                    turn.stream.rest(turn.generated.rest)
                    await self.engine.confirm()
                    finished = self.turn_log.finished(turn)
                    if request.commits:
                        timing.enter("commit")
                        await commit(turn, model, finished, self.store, self.threads, self.hints)
                        timing.leave()
                        turn.reservation.superseded = True
                        finished.version.CopyFrom(turn.version.to_proto())
                        finished.durable = True
                    turn.stream.send(inference_pb2.GenerateResponse(finished=finished))
                    self.turn_log.completed(turn)
                    self._end(turn)
                    if request.commits:
                        with self.locks.settling(request.key):
                            await self.engine.wait(job.future)
                            await self.pool_writer.keep(turn, model, job)
            except Exception as error:
                sharing.leave()  # First: a told error's frames are cleared.
                self._end(turn, error)
                raise
            finally:
                sharing.close()
                turn.restored.tensors = {}  # The stream may keep the turn for long.

    @staticmethod
    def _reuses(turn: Turn) -> bool:
        """KV of other tokens never serves."""
        return turn.request.cache_policy != inference_pb2.CACHE_POLICY_RECOMPUTE and not turn.retokenized

    async def _restore(self, turn: Turn, model: LoadedModel) -> Restored:
        """Return KV to start from; the reservation holds the pool's."""
        if not self._reuses(turn):
            reason = types_pb2.MISS_REASON_INCOMPATIBLE if turn.retokenized else types_pb2.MISS_REASON_UNSPECIFIED
            return Restored(model, reason=reason, room=turn.reservation)
        await self.persister.wait_resumable(turn.request.key, turn.earlier_checkpoints)
        return await self.restorer.find(turn.request.key, model, turn.lookup, turn.reservation)

    @asynccontextmanager
    async def _generated(self, turn: Turn, model: LoadedModel, sharing: PromptSharing) -> AsyncIterator[TurnJob]:
        """Run the job. The body begins when all is said, before KV of the last token, and the engine has let go of the
        turn at the end.
        """
        plan, timing = turn.plan, turn.timing
        sequence: list[int] = await self.threads.plan(plan.sequence.tolist, len(plan.sequence))
        captures = _granted_captures(turn, model)
        job = sharing.job = TurnJob(
            sequence,
            turn.restored.sequence,
            turn.decoding,
            partial(self.engine.tell, turn.stream.take),
            turn.stream.cancelled,
            partial(self.engine.tell, self._started, turn, model),
            turn.restored.tokens,
            Restored(model, room=turn.reservation).sequence,
            captures,
            sharing.blocks,
            resumable=turn.reservation.checkpoints > len(captures),
            arrays=turn.reservation.array_bytes > 0,
        )
        turn.generated = job.result
        timing.enter("queue", waits_for="engine")
        turn.stream.interrupt = None  # The engine looks at the flag before every step.
        self.engine.begin(lambda: model.engine.add(job), job.future)
        model.engine.gathering.came(turn)
        try:
            await self.engine.wait(job.said)
            timing.computed(job, _failure(turn, job))
            self.restorer.computed(model, job.chunks)
            turn.stream.check()
            job.said.result()
            timing.annotate_request(generated_tokens=job.result.sampled)
            yield job
        finally:
            await self.engine.wait(job.future)

    def _started(self, turn: Turn, model: LoadedModel, at: float, assembly_seconds: float, reused: int) -> None:
        """Tell the caller that the engine started at `at`, with `reused` tokens."""
        if reused < turn.restored.tokens:  # Without memory for more, it began without.
            turn.restored = Restored(model, reason=types_pb2.MISS_REASON_EVICTED, room=turn.reservation)
        turn.timing.start(at, turn.restored.read_seconds, assembly_seconds)
        dropped = turn.dropped_tokens if turn.request.commits and not turn.appended else 0
        turn.started = inference_pb2.Started(
            cache=turn.cache_report(),
            base=turn.base.to_proto(),
            queue=duration(turn.timing.queue_seconds),
            load=duration(turn.timing.load_seconds),
            context_remaining=turn.context_remaining,
            appended=turn.appended,
            dropped_tokens=dropped,
            dropped_snapshot=automatic_snapshot(turn.base.number) if dropped else "",
            context_trim=turn.context_trim(),
        )
        turn.timing.annotate_request(prompt_tokens=len(turn.plan.sequence), **found(turn))
        self.turn_log.started(turn)
        turn.stream.started(turn.started, model.tokenizer)


def _captures(turn: Turn, model: LoadedModel) -> tuple[int, ...]:
    """Return where prefill keeps checkpoints, the worthiest first."""
    plan = turn.plan
    if not turn.request.commits:
        return ()
    return captures_by_worth(plan.checkpoints, len(plan.sequence), model.checkpoint_distance)


def _granted_captures(turn: Turn, model: LoadedModel) -> list[int]:
    """Return those after the found KV that have memory; give back the rest."""
    ahead = [position for position in _captures(turn, model) if position > turn.restored.tokens]
    long = len(turn.plan.sequence) - turn.restored.tokens > SMALLEST_CHUNK
    model.memory.admission.capture_at_most(turn.reservation, len(ahead) + long)
    return ahead[: turn.reservation.checkpoints]


def _failure(turn: Turn, job: TurnJob) -> str:
    """Return the status with which the engine ended a turn, or ""."""
    error = turn.stream.error or (None if job.said.cancelled() else job.said.exception())
    if error is not None:
        return tracing.failure_of(error)
    return tracing.CANCELLED if job.said.cancelled() or turn.stream.cancelled.is_set() else ""
