"""What a turn tells the metrics and its caller about itself."""

import logging
import time
from typing import Final, NamedTuple

from agentmem import logs
from agentmem.errors import AgentmemError
from agentmem.v1 import inference_pb2, types_pb2
from inference_service.answers import duration
from inference_service.engine.generation import Generated
from inference_service.metrics import TIERS, WorkerMetrics
from inference_service.turns import telling
from inference_service.turns.planned import Prepared
from inference_service.turns.running import RunningTurn

log = logging.getLogger(__name__)


class _TakenUp(NamedTuple):
    """What is known of a turn since the engine took it up."""

    queue_seconds: float
    load_seconds: float
    prepared: Prepared | None


_NOT_TAKEN_UP: Final = _TakenUp(0.0, 0.0, None)


class TurnMeasures:
    """Counts turns, and builds what they report. Event loop only."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics
        self._taken_up: dict[RunningTurn, _TakenUp] = {}

    def arrived(self) -> None:
        """A turn waits."""
        self._metrics.waiting.inc()

    def taken_up(self, turn: RunningTurn, prepared: Prepared, at: float, load_seconds: float) -> None:
        """The engine works on a turn, since `at`; its caches took `load_seconds` there. Count what it reuses."""
        load_seconds += prepared.reuse.load_seconds
        self._taken_up[turn] = _TakenUp(at - prepared.reuse.load_seconds - turn.arrived, load_seconds, prepared)
        if prepared.reuse.load_bytes:
            self._metrics.load_seconds.observe(load_seconds)
        self._metrics.waiting.dec()
        self._metrics.running.inc()
        self._metrics.queue_time.observe(at - turn.arrived)
        tokens, reuse = len(prepared.plan.sequence), prepared.reuse
        self._metrics.prompt_tokens.inc(tokens)
        if turn.request.cache_policy != inference_pb2.CACHE_POLICY_RECOMPUTE:
            self._metrics.queries.inc(tokens)
            self._metrics.looked_up(prepared.plan.kind, reuse.tier, prepared.miss_reason)
        for found in reuse.by_tier:
            self._metrics.hits.labels(TIERS[found.tier]).inc(found.tokens)
            self._metrics.prompt_tokens_cached.labels(TIERS[found.tier]).inc(found.tokens)

    def finished(self, turn: RunningTurn, prepared: Prepared, generated: Generated) -> inference_pb2.Finished:
        """The turn's last event, without a version."""
        first = generated.first_token_at
        reuse = prepared.reuse
        queue_seconds, load_seconds, _ = self._taken_up[turn]
        return inference_pb2.Finished(
            reason=generated.reason,
            stop_string=generated.stop_string,
            usage=types_pb2.Usage(
                prompt_tokens=len(prepared.plan.sequence),
                cached=reuse.by_tier,
                completion_tokens=generated.sampled,
            ),
            timings=types_pb2.Timings(
                queue=duration(queue_seconds),
                load=duration(load_seconds),
                prefill=duration(generated.prefill_seconds),
                decode=duration(generated.decode_seconds),
                time_to_first_token=duration(0 if first is None else first - turn.arrived),
            ),
        )

    def completed(self, turn: RunningTurn, prepared: Prepared, generated: Generated) -> None:
        """The turn went well: count it, and log one line without content."""
        metrics, reuse = self._metrics, prepared.reuse
        metrics.prefill_time.observe(generated.prefill_seconds)
        if generated.first_token_at is not None:
            metrics.time_to_first_token.labels(TIERS[reuse.tier]).observe(generated.first_token_at - turn.arrived)
        if generated.sampled > 1:
            metrics.inter_token_latency.observe(generated.decode_seconds / (generated.sampled - 1))
        metrics.finished.labels(
            types_pb2.FinishReason.Name(generated.reason).removeprefix("FINISH_REASON_").lower()
        ).inc()
        key = turn.request.key
        if turn.request.commits and prepared.retokenized:
            logs.event(
                log,
                "the tokenizer has changed; what the agent remembered was tokenized again",
                namespace=key.namespace,
                agent=key.agent_id,
                model=key.model_id,
                tokens=len(prepared.ledger),
            )
        if turn.request.commits and prepared.dropped_tokens:
            logs.event(
                log,
                "the prompt replaces a part of what the agent remembered",
                logging.WARNING,
                namespace=key.namespace,
                agent=key.agent_id,
                model=key.model_id,
                dropped_tokens=prepared.dropped_tokens,
                kept_tokens=len(prepared.ledger) - prepared.dropped_tokens,
            )
        queue_seconds, load_seconds, _ = self._taken_up.get(turn, _NOT_TAKEN_UP)
        telling.finished(turn, prepared, queue_seconds, load_seconds)

    def replayed(self, turn: RunningTurn) -> None:
        """A committed turn was answered again."""
        telling.replayed(turn)
        self._metrics.finished.labels("replayed").inc()

    def ended(self, turn: RunningTurn) -> None:
        """The caller was told that the turn is over, one way or another."""
        taken_up = self._taken_up.pop(turn, None)
        if turn.error is not None:
            queue_seconds, load_seconds, prepared = taken_up or _NOT_TAKEN_UP
            telling.failed(turn, prepared, queue_seconds, load_seconds)
        if taken_up is None:
            self._metrics.waiting.dec()
        else:
            self._metrics.running.dec()
        self._metrics.generation_tokens.inc(len(turn.tokens))
        self._metrics.e2e_latency.observe(time.monotonic() - turn.arrived)
        if turn.error is not None:
            code = turn.error.code.name.lower() if isinstance(turn.error, AgentmemError) else "internal"
            self._metrics.finished.labels(code).inc()
