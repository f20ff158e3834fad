"""A turn's times, and its spans where its request is traced:

queue       model, and the agent's earlier turn
match       ledger, rendering, comparison
summary     a note
queue       memory
load        KV looked up and read
queue       the engine
load        KV begins there
prefill …   one for each chunk
decode      with the first token
commit      the ledger, fsynced
"""

import time
from collections.abc import Mapping
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from agentmem import tracing
from agentmem.v1 import types_pb2
from inference_service.engine.generation import Generated, TurnJob


class Timing:
    """Seconds of the monotonic clock. Event loop; all but `start` and `end` in the turn's task."""

    def __init__(self) -> None:
        self.arrived = time.monotonic()
        self.started: float | None = None
        self.load_seconds = 0.0
        """KV was read, verified and assembled."""
        self.queue_seconds = 0.0
        """Until the engine started, without reading KV."""
        self._trace = tracing.current()
        self._request = tracing.present()
        self._step: tracing.Span | None = None
        self._assembled = 0.0

    def start(self, at: float, read_seconds: float, assembly_seconds: float) -> None:
        """Record the engine's start."""
        self.started, self._assembled = at, at + assembly_seconds
        self.load_seconds = read_seconds + assembly_seconds
        self.queue_seconds = at - self.arrived - read_seconds
        self.end(at=at)
        self._span("load", at, self._assembled, where="engine")

    def first_token_seconds(self, generated: Generated) -> float:
        """0 without a first token."""
        return 0.0 if generated.first_token_at is None else generated.first_token_at - self.arrived

    def to_proto(self, generated: Generated) -> types_pb2.Timings:
        return types_pb2.Timings(
            queue=duration(self.queue_seconds),
            load=duration(self.load_seconds),
            prefill=duration(generated.prefill_seconds),
            decode=duration(generated.decode_seconds),
            time_to_first_token=duration(self.first_token_seconds(generated)),
        )

    def enter(self, name: str, at: float | None = None, **attributes: tracing.Attribute) -> None:
        """Begin a step's span, and end the one before."""
        if self._request is None or self._trace is None:
            return
        at = time.monotonic() if at is None else at
        self.end(at=at)
        self._step = self._request.child(name, at, _named(attributes))
        tracing.enter(self._trace.within(self._step))

    def leave(self) -> None:
        if self._request is not None:
            self.end()
            tracing.enter(self._trace)

    def annotate(self, **attributes: tracing.Attribute) -> None:
        """Unless it has ended."""
        if self._step is not None:
            self._step.set(_named(attributes))

    def annotate_request(self, **attributes: tracing.Attribute) -> None:
        """Unless it has ended."""
        if self._request is not None:
            self._request.set(_named(attributes))

    def computed(self, job: TurnJob, failure: str) -> None:
        """Record the engine's spans; `failure` is a status, or ""."""
        if self._request is None or not job.started:
            return
        tracing.enter(self._trace)
        ended, last = time.monotonic(), self._assembled or job.started
        for chunk in job.chunks:
            self._span("prefill", chunk.began, chunk.ended, tokens=chunk.tokens, position=chunk.position)
            last = chunk.ended
        result = job.result
        if not result.prefill_seconds:
            self._span("prefill", min(last, ended), ended, failure)
        elif job.decoding is not None:
            began = job.started + result.prefill_seconds
            ended = ended if failure else began + result.decode_seconds
            tokens = result.sampled or len(result.token_ids)
            self._span("decode", began, ended, failure, first_token_at=result.first_token_at, generated_tokens=tokens)

    def end(self, failure: str = "", at: float | None = None) -> None:
        """End the last span."""
        if self._step is not None:
            self._step.end(failure, at)

    def _span(
        self,
        name: str,
        began: float,
        ended: float,
        failure: str = "",
        first_token_at: float | None = None,
        **attributes: tracing.Attribute,
    ) -> None:
        if self._request is None:
            return
        span = self._request.child(name, began, _named(attributes))
        if first_token_at is not None:
            span.note("first token", first_token_at)
        span.end(failure, ended)


def _named(attributes: Mapping[str, tracing.Attribute]) -> dict[str, tracing.Attribute]:
    return {f"agentmem.{name}": value for name, value in attributes.items()}


def duration(seconds: float) -> Duration:
    message = Duration()
    message.FromTimedelta(timedelta(seconds=max(0.0, seconds)))
    return message
