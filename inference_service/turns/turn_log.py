"""A turn's log line, counts, and last event.

The line has no text of prompt or answer, and an error's words only if nothing sent can be in them.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from agentmem import tracing
from agentmem.errors import Aborted, AgentmemError, ResourceExhausted, Unavailable
from agentmem.process import logs
from agentmem.v1 import inference_pb2, types_pb2
from agentmem.words import short_name
from inference_service.domain import TurnRequest
from inference_service.metrics import REPLAYED, TIERS, WorkerMetrics, reason_of
from inference_service.turns.turn import Turn

log = logging.getLogger(__name__)

_WITH_OUR_WORDS: Final = (Aborted, ResourceExhausted, Unavailable)
_OUR_FAULTS: Final = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS"})


class TurnLog:
    """Event loop only."""

    def __init__(self, metrics: WorkerMetrics, max_requests: int) -> None:
        self._metrics = metrics
        metrics.requests_limit.set(max_requests)

    def refused(self, request: TurnRequest, error: Exception) -> None:
        """Count a turn that did not begin, of a registered model."""
        if request.key.model_id in self._metrics.models:
            self._metrics.finished.labels(*self._metrics.turn(request.key), reason_of(error)).inc()

    def arrived(self, turn: Turn) -> None:
        self._metrics.waiting.labels(turn.request.key.model_id).inc()

    def started(self, turn: Turn) -> None:
        """Count a start, what it reuses, and tokens from now on."""
        metrics, key, timing = self._metrics, turn.request.key, turn.timing
        assert timing.started is not None
        labels = metrics.turn(key)
        if turn.restored.load_bytes:
            metrics.load_seconds.labels(key.model_id).observe(timing.load_seconds)
        metrics.waiting.labels(key.model_id).dec()
        metrics.running.labels(key.model_id).inc()
        metrics.queue_time.labels(*labels).observe(timing.started - timing.arrived)
        tokens = len(turn.plan.sequence)
        metrics.prompt_tokens.labels(*labels).inc(tokens)
        if turn.request.cache_policy != inference_pb2.CACHE_POLICY_RECOMPUTE:
            metrics.queries.labels(*labels).inc(tokens)
            what = found(turn)
            metrics.lookups.labels(*labels, what["match"], what["tier"], what.get("miss_reason", "")).inc()
        for each in turn.restored.by_tier:
            metrics.hits.labels(*labels, TIERS[each.tier]).inc(each.tokens)
            metrics.prompt_tokens_cached.labels(*labels, TIERS[each.tier]).inc(each.tokens)
        turn.stream.on_token = token_counter(metrics, labels)

    def finished(self, turn: Turn) -> inference_pb2.Finished:
        """Return the last event, without a version."""
        generated = turn.generated
        return inference_pb2.Finished(
            reason=generated.reason,
            stop_string=generated.stop_string,
            usage=types_pb2.Usage(
                prompt_tokens=len(turn.plan.sequence),
                cached=turn.restored.by_tier,
                completion_tokens=generated.sampled,
                reasoning_tokens=generated.reasoning_tokens,
            ),
            timings=turn.timing.to_proto(generated),
        )

    def completed(self, turn: Turn) -> None:
        metrics, key, generated = self._metrics, turn.request.key, turn.generated
        labels = metrics.turn(key)
        metrics.prefill_time.labels(*labels).observe(generated.prefill_seconds)
        if generated.first_token_at is not None:
            seconds = turn.timing.first_token_seconds(generated)
            metrics.time_to_first_token.labels(*labels, TIERS[turn.restored.tier]).observe(seconds)
        metrics.e2e_latency.labels(*labels).observe(time.monotonic() - turn.timing.arrived)
        metrics.finished.labels(*labels, short_name(types_pb2.FinishReason.DESCRIPTOR, generated.reason)).inc()
        if turn.request.commits:
            self._log_losses(turn)
        _log_end("turn finished", turn)

    def _log_losses(self, turn: Turn) -> None:
        """Log what a commit takes from the agent's memory."""
        key, trim = turn.request.key, turn.context_trim()
        ids = _ids(key.to_proto())
        if turn.retokenized:
            message = "the tokenizer has changed; what the agent remembered was tokenized again"
            logs.event(log, message, logging.INFO, **ids, tokens=len(turn.ledger))
        if trim is not None:
            policy = short_name(types_pb2.ContextPolicy.DESCRIPTOR, trim.policy)
            self._metrics.context_trims.labels(*self._metrics.turn(key), policy).inc()
            logs.event(
                log,
                "the agent's memory outgrew the context; its oldest turns were dropped",
                logging.INFO,
                **ids,
                policy=policy,
                dropped_tokens=trim.dropped_tokens,
                dropped_turns=trim.dropped_turns,
                snapshot=trim.snapshot,
            )
        elif turn.dropped_tokens:
            logs.event(
                log,
                "the prompt replaces a part of what the agent remembered",
                logging.WARNING,
                **ids,
                dropped_tokens=turn.dropped_tokens,
                kept_tokens=turn.shared_tokens,
                snapshot_version=turn.snapshot_version,
            )

    def replayed(self, turn: Turn) -> None:
        _log_end("turn replayed", turn)
        self._metrics.finished.labels(*self._metrics.turn(turn.request.key), REPLAYED).inc()

    def ended(self, turn: Turn) -> None:
        """Count the end, and log a failure."""
        metrics, key, error = self._metrics, turn.request.key, turn.stream.error
        (metrics.waiting if turn.timing.started is None else metrics.running).labels(key.model_id).dec()
        if error is not None:
            failed(turn, error)
            metrics.finished.labels(*metrics.turn(key), reason_of(error)).inc()


def token_counter(metrics: WorkerMetrics, labels: tuple[str, ...]) -> Callable[[float], None]:
    """Count tokens by when they were sampled, so that a stall shows while it lasts."""
    tokens, gaps = metrics.generation_tokens.labels(*labels), metrics.inter_token_latency.labels(*labels)
    last: float | None = None

    def sampled(at: float) -> None:
        nonlocal last
        tokens.inc()
        if last is not None:
            gaps.observe(at - last)
        last = at

    return sampled


@contextmanager
def refused(key: types_pb2.AgentKey) -> Iterator[None]:
    """Log a refusal before the turn. Nothing of `key` is checked."""
    try:
        yield
    except AgentmemError as error:
        logs.event(log, "turn refused", logging.INFO, **{**_ids(key), **_why(error)})
        raise


def failed(turn: Turn, error: Exception) -> None:
    cancelled = tracing.failure_of(error) == tracing.CANCELLED
    _log_end("turn cancelled" if cancelled else "turn failed", turn, **_why(error))


def found(turn: Turn) -> dict[str, str | int]:
    """Return what memory gave, in the words of the metrics."""
    fields: dict[str, str | int] = {
        "match": short_name(types_pb2.Match.DESCRIPTOR, turn.plan.kind),
        "tier": TIERS[turn.restored.tier],
        "reused_tokens": turn.restored.tokens,
    }
    if turn.miss_reason:
        fields["miss_reason"] = short_name(types_pb2.MissReason.DESCRIPTOR, turn.miss_reason)
    return fields


def _log_end(message: str, turn: Turn, **why: str) -> None:
    request, timing, generated = turn.request, turn.timing, turn.generated
    fields: dict[str, Any] = {**_ids(request.key.to_proto()), **why}
    if request.request_id:
        fields["turn"] = request.request_id
    if timing.started is not None:
        fields |= {"prompt_tokens": len(turn.plan.sequence), **found(turn)}
        fields["generated_tokens"] = generated.sampled or len(turn.stream.tokens)
        if not why:
            fields["finish"] = short_name(types_pb2.FinishReason.DESCRIPTOR, generated.reason)
        fields |= {"queue_ms": _ms(timing.queue_seconds), "load_ms": _ms(timing.load_seconds)}
        fields |= {"prefill_ms": _ms(generated.prefill_seconds), "decode_ms": _ms(generated.decode_seconds)}
        if generated.first_token_at is not None:
            fields["first_token_ms"] = _ms(timing.first_token_seconds(generated))
    fields["total_ms"] = _ms(time.monotonic() - timing.arrived)
    level = logging.WARNING if why.get("status") in _OUR_FAULTS else logging.INFO
    logs.event(log, message, level, **fields)


def _ids(key: types_pb2.AgentKey) -> dict[str, str]:
    ids = {"agent": key.agent_id, "model": key.model_id, "namespace": key.namespace}
    return {name: tracing.identifier(value) for name, value in ids.items()}


def _why(error: Exception) -> dict[str, str]:
    why = {"status": tracing.failure_of(error)}
    if isinstance(error, _WITH_OUR_WORDS):
        why["reason"] = error.message
    return why


def _ms(seconds: float) -> float:
    return round(max(0.0, seconds) * 1000, 1)
