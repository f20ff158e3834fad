"""What a turn tells the metrics and its caller about itself."""

import logging
import time
from typing import Final, NamedTuple

from agentmem import logs
from agentmem.v1 import inference_pb2, types_pb2
from inference_service.answers import duration
from inference_service.domain import TurnRequest
from inference_service.engine.generation import Generated
from inference_service.metrics import REPLAYED, TIERS, WorkerMetrics, finish_reason, reason_of
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

    def refused(self, request: TurnRequest, error: Exception) -> None:
        """A turn was not even begun. Who asks for a model that nobody registered is not counted here."""
        if request.key.model_id in self._metrics.models:
            self._metrics.finished.labels(*self._metrics.turn(request.key), reason_of(error)).inc()

    def arrived(self, turn: RunningTurn) -> None:
        """A turn waits."""
        self._metrics.waiting.labels(turn.request.key.model_id).inc()

    def taken_up(self, turn: RunningTurn, prepared: Prepared, at: float, load_seconds: float) -> None:
        """The engine works on a turn, since `at`; its caches took `load_seconds` there. Count what it reuses."""
        metrics, key, reuse = self._metrics, turn.request.key, prepared.reuse
        labels = metrics.turn(key)
        load_seconds += reuse.load_seconds
        self._taken_up[turn] = _TakenUp(at - reuse.load_seconds - turn.arrived, load_seconds, prepared)
        if reuse.load_bytes:
            metrics.load_seconds.labels(key.model_id).observe(load_seconds)
        metrics.waiting.labels(key.model_id).dec()
        metrics.running.labels(key.model_id).inc()
        metrics.queue_time.labels(*labels).observe(at - turn.arrived)
        tokens = len(prepared.plan.sequence)
        metrics.prompt_tokens.labels(*labels).inc(tokens)
        if turn.request.cache_policy != inference_pb2.CACHE_POLICY_RECOMPUTE:
            metrics.queries.labels(*labels).inc(tokens)
            metrics.looked_up(key, prepared.plan.kind, reuse.tier, prepared.miss_reason)
        for found in reuse.by_tier:
            metrics.hits.labels(*labels, TIERS[found.tier]).inc(found.tokens)
            metrics.prompt_tokens_cached.labels(*labels, TIERS[found.tier]).inc(found.tokens)
        turn.sampled = TokenMeasures(metrics, labels).sampled

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
                reasoning_tokens=generated.reasoning_tokens,
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
        metrics, key, reuse = self._metrics, turn.request.key, prepared.reuse
        labels = metrics.turn(key)
        metrics.prefill_time.labels(*labels).observe(generated.prefill_seconds)
        if generated.first_token_at is not None:
            seconds = generated.first_token_at - turn.arrived
            metrics.time_to_first_token.labels(*labels, TIERS[reuse.tier]).observe(seconds)
        metrics.e2e_latency.labels(*labels).observe(time.monotonic() - turn.arrived)
        metrics.finished.labels(*labels, finish_reason(generated.reason)).inc()
        if turn.request.commits and prepared.retokenized:
            logs.event(
                log,
                "the tokenizer has changed; what the agent remembered was tokenized again",
                namespace=key.namespace,
                agent=key.agent_id,
                model=key.model_id,
                tokens=len(prepared.ledger),
            )
        trim = prepared.context_trim(commits=True) if turn.request.commits else None
        if trim is not None:
            policy = types_pb2.ContextPolicy.Name(trim.policy).removeprefix("CONTEXT_POLICY_").lower()
            metrics.context_trims.labels(*labels, policy).inc()
            logs.event(
                log,
                "the agent's memory outgrew the context; its oldest turns were dropped",
                namespace=key.namespace,
                agent=key.agent_id,
                model=key.model_id,
                policy=policy,
                dropped_tokens=trim.dropped_tokens,
                dropped_turns=trim.dropped_turns,
                snapshot=trim.snapshot,
            )
        elif turn.request.commits and prepared.dropped_tokens:
            logs.event(
                log,
                "the prompt replaces a part of what the agent remembered",
                logging.WARNING,
                namespace=key.namespace,
                agent=key.agent_id,
                model=key.model_id,
                dropped_tokens=prepared.dropped_tokens,
                kept_tokens=prepared.shared_tokens,
                snapshot_version=prepared.snapshot_version,
            )
        queue_seconds, load_seconds, _ = self._taken_up.get(turn, _NOT_TAKEN_UP)
        telling.finished(turn, prepared, queue_seconds, load_seconds)

    def replayed(self, turn: RunningTurn) -> None:
        """A committed turn was answered again."""
        telling.replayed(turn)
        self._metrics.finished.labels(*self._metrics.turn(turn.request.key), REPLAYED).inc()

    def ended(self, turn: RunningTurn) -> None:
        """The caller was told that the turn is over, one way or another."""
        metrics, key = self._metrics, turn.request.key
        taken_up = self._taken_up.pop(turn, None)
        (metrics.running if taken_up is not None else metrics.waiting).labels(key.model_id).dec()
        if turn.error is not None:
            queue_seconds, load_seconds, prepared = taken_up or _NOT_TAKEN_UP
            telling.failed(turn, prepared, queue_seconds, load_seconds)
            metrics.finished.labels(*metrics.turn(key), reason_of(turn.error)).inc()


class TokenMeasures:
    """Counts one turn's tokens as they come, so that a stall shows while it lasts. Event loop only."""

    def __init__(self, metrics: WorkerMetrics, labels: tuple[str, ...]) -> None:
        self._tokens = metrics.generation_tokens.labels(*labels)
        self._gaps = metrics.inter_token_latency.labels(*labels)
        self._last: float | None = None

    def sampled(self, at: float) -> None:
        """A token was sampled, at that time of the engine's."""
        self._tokens.inc()
        if self._last is not None:
            self._gaps.observe(at - self._last)
        self._last = at
