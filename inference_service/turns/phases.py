"""What a turn shows of itself in a trace: its phases, one after another. Nothing where its request is in no trace.

    queue            until its model is loaded and its agent has no other turn
    match            its ledger is fetched, its prompt rendered and compared
    summary          the model writes a note of what the context has no room for
    queue            until there is memory
    load             KV is looked up and read
    queue            until the engine takes it up
    load             KV is put together there
    prefill …        one for each chunk
    decode           with the moment of the first token
    commit           the ledger is written, fsynced

Together those before prefill take as long as `finished.timings` says for queue and load; prefill and decode are as
there, but that its prefill begins with the load on the engine and has the time between chunks, in which others decode.
"""

import time
from collections.abc import Mapping

from agentmem import spans, tracing
from inference_service.engine.generation import TurnJob


class Phases:
    """The phases of one turn, made within its request. In the turn's task, but for `taken_up` and `end`; event loop."""

    def __init__(self) -> None:
        self._trace = tracing.current()
        self._request = spans.present()
        self._phase: spans.Span | None = None
        self._engine_load_ended = 0.0

    def enter(self, name: str, at: float | None = None, **attributes: spans.Attribute) -> None:
        """A phase begins, now or at a moment before, and the one before it ends."""
        if self._request is None or self._trace is None:
            return
        at = time.monotonic() if at is None else at
        self._leave(at=at)
        self._phase = self._request.child(name, at, _named(attributes))
        tracing.enter(self._trace.within(self._phase))

    def leave(self, **attributes: spans.Attribute) -> None:
        """The phase ends; what follows belongs to the request."""
        if self._request is not None:
            self.tell(**attributes)
            self._leave()
            tracing.enter(self._trace)

    def tell(self, **attributes: spans.Attribute) -> None:
        """Add attributes to the phase, if it has not ended."""
        if self._phase is not None:
            self._phase.set(_named(attributes))

    def tell_request(self, **attributes: spans.Attribute) -> None:
        """Add attributes to the request's span, if it has not ended."""
        if self._request is not None:
            self._request.set(_named(attributes))

    def taken_up(self, at: float, load_seconds: float) -> None:
        """The engine took the turn up, and then put its caches together."""
        self._leave(at=at)
        self._engine_load_ended = at + load_seconds
        self._span("load", at, at + load_seconds, where="engine")

    def computed(self, job: TurnJob, ended: float, failure: str) -> None:
        """The engine is through with the turn, at `ended` if it failed it."""
        if self._request is None or not job.started:
            return
        tracing.enter(self._trace)
        last = self._engine_load_ended or job.started
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

    def end(self, failure: str) -> None:
        """The turn is over; the phase that it was in failed so, if it failed."""
        self._leave(failure)

    def _leave(self, failure: str = "", at: float | None = None) -> None:
        if self._phase is not None:
            self._phase.end(failure, at)

    def _span(
        self,
        name: str,
        began: float,
        ended: float,
        failure: str = "",
        first_token_at: float | None = None,
        **attributes: spans.Attribute,
    ) -> None:
        if self._request is None:
            return
        span = self._request.child(name, began, _named(attributes))
        if first_token_at is not None:
            span.note("first token", first_token_at)
        span.end(failure, ended)


def _named(attributes: Mapping[str, spans.Attribute]) -> dict[str, spans.Attribute]:
    return {f"agentmem.{name}": value for name, value in attributes.items()}
