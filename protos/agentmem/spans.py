"""Spans: what a trace shows of a request, and nothing at all where tracing is off.

    GATEWAY  POST /v1/chat/completions, agentmem.v1.InferenceService/Generate, …: one for each request at a door
    WORKER   └ agentmem.v1.InferenceService/Generate, …: one for each RPC
                ├ queue, match, load, prefill (one for each chunk), decode: see inference_service.turns.phases
                ├ commit
    STORE       │  └ agentmem.v1.CacheStoreService/CommitTurn, …
                │     └ transaction
                └ …/StageBlocks, …/PublishBlocks: after the answer

`agentmem.otlp` turns them on. The one that is being worked on is `tracing.current().span`, and its traceparent is what
calls to others carry. A caller that says that it is not sampled gets none, and passes on that it has none.

Times are those of `time.monotonic`. Spans have ids, lengths and durations, and no text of prompts or answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from agentmem import tracing
from agentmem.secrecy import without_secrets

Attribute = str | int | float | bool

LONGEST_ID: Final = 256
"""Characters of an id from a request, in logs and traces. Those that are taken are shorter."""

AGENT: Final = "agentmem.agent_id"
MODEL: Final = "agentmem.model_id"
REQUEST: Final = "agentmem.request_id"
CANCELLED: Final = "CANCELLED"


class Span(Protocol):
    """One span. Any thread, but one at a time."""

    @property
    def traceparent(self) -> str:
        """What calls carry that are made within it."""

    @property
    def trace_id(self) -> str:
        """As W3C writes it."""

    @property
    def span_id(self) -> str:
        """As W3C writes it."""

    @property
    def recording(self) -> bool:
        """Somebody will see it, and it has not ended."""

    def child(self, name: str, at: float | None = None, attributes: Mapping[str, Attribute] | None = None) -> Span:
        """Begin a span within this one, which may have ended, now or at a moment before."""

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes; no effect when it has ended."""

    def rename(self, name: str) -> None:
        """Give it another name; no effect when it has ended."""

    def note(self, name: str, at: float) -> None:
        """Something happened within it; no effect when it has ended."""

    def end(self, failure: str = "", at: float | None = None) -> None:
        """End it, now or at a moment before. `failure` is a status's name, and empty if all went well.

        No effect when it has ended.
        """


class Recorder(Protocol):
    """Makes the spans that have no parent in this process."""

    def serving(self, name: str, trace: tracing.Trace, attributes: Mapping[str, Attribute]) -> Span:
        """Begin the span of a request that was received with `trace`."""


class _Tracing:
    recorder: Recorder | None = None


def record_by(recorder: Recorder | None) -> None:
    """From now on this process's spans are made by `recorder`; none are without one."""
    _Tracing.recorder = recorder


def on() -> bool:
    """Whether there are any spans."""
    return _Tracing.recorder is not None


def served(name: str, trace: tracing.Trace, attributes: Mapping[str, Attribute]) -> tracing.Trace:
    """`trace` within a span of its own, as a request of that name; as it is where tracing is off."""
    if _Tracing.recorder is None:
        return trace
    return trace.within(_Tracing.recorder.serving(name, trace, {REQUEST: identifier(trace.request_id), **attributes}))


def present() -> Span | None:
    """The span that is worked on; None where nobody will see one."""
    trace = tracing.current()
    return None if trace is None or trace.span is None or not trace.span.recording else trace.span


@contextmanager
def within(name: str) -> Iterator[None]:
    """Do what is in the block within a span of its own."""
    span = present()
    if span is None:
        yield
        return
    child, failure = span.child(name), ""
    try:
        yield
    except BaseException as error:
        failure = failure_of(error)
        raise
    finally:
        child.end(failure)


def failure_of(error: BaseException) -> str:
    """The name of the status that an error is. Its text is left out."""
    code = getattr(error, "code", None)
    code = code() if callable(code) else code  # a call's error has a method, ours have a value
    if isinstance(error, Exception):
        return str(getattr(code, "name", "INTERNAL"))
    return CANCELLED


def identifier(text: str) -> str:
    """An id as logs and traces have it: no key that somebody took for one, and no more than its beginning."""
    return without_secrets(text)[:LONGEST_ID]
