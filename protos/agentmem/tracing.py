"""The request that running code serves: its id, W3C trace context and span, from the gateway to the store and back.

A context variable holds it, which tasks, `asyncio.to_thread` and `Threads` inherit. Servers set it from metadata,
channels send it on, and log lines have its id. Malformed values are dropped.

Spans, if `agentmem.process.otlp` turns tracing on:

    GATEWAY  POST /v1/chat/completions, agentmem.v1.InferenceService/Generate, …
    WORKER   └ agentmem.v1.InferenceService/Generate, …
                ├ queue, match, load, prefill (one for each chunk), decode: inference_service.turns.timing
                ├ commit
    STORE       │  └ agentmem.v1.CacheStoreService/CommitTurn, …
                │     └ transaction
                └ …/StageBlocks, …/PublishBlocks: after the answer

Times are those of `time.monotonic`. Spans hold no prompt or answer text.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from agentmem.process.otlp_export import Span as Span

REQUEST_ID: Final = "x-request-id"
TRACEPARENT: Final = "traceparent"
_TRACESTATE = "tracestate"
_BAGGAGE = "baggage"

MAX_REQUEST_ID: Final = 128
"""Printable ASCII, no spaces."""
MAX_TRACESTATE: Final = 512
"""The length that W3C has everybody pass on."""
MAX_BAGGAGE: Final = 8192
_MAX_TRACEPARENT = 256

_ID = re.compile(rf"[!-~]{{1,{MAX_REQUEST_ID}}}")
_PRINTABLE = re.compile(r"[ -~]+")
_PARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")

_P = ParamSpec("_P")
_T = TypeVar("_T")

SHOWN: Final = re.compile(r"am_([0-9a-f]{12})_([A-Za-z0-9_-]{20,200})")
"""A key: id and secret."""


def without_secrets(text: str) -> str:
    """Remove keys' secrets; their ids stay."""
    return SHOWN.sub(r"am_\1_…", text) if "am_" in text else text


@dataclass(frozen=True)
class Trace:
    """One request. `request_id` is never empty; `traceparent` is that of `span`, if there is one. All are
    well-formed.
    """

    request_id: str
    traceparent: str = ""
    tracestate: str = ""
    baggage: str = ""
    span: Span | None = field(default=None, repr=False)

    def within(self, span: Span) -> Trace:
        return replace(self, traceparent=span.traceparent, span=span)

    @cached_property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        pairs = (
            (REQUEST_ID, self.request_id),
            (TRACEPARENT, self.traceparent),
            (_TRACESTATE, self.tracestate),
            (_BAGGAGE, self.baggage),
        )
        return tuple(pair for pair in pairs if pair[1])

    @cached_property
    def answer(self) -> tuple[tuple[str, str], ...]:
        """The metadata that the caller gets back."""
        return self.metadata[: 2 if self.traceparent else 1]


def received(pairs: Iterable[tuple[str, str | bytes]]) -> Trace:
    """Return the trace in metadata with lower-case names; with a new id if needed."""
    values: dict[str, list[str]] = {REQUEST_ID: [], TRACEPARENT: [], _TRACESTATE: [], _BAGGAGE: []}
    for name, value in pairs:
        if name in values and isinstance(value, str):
            values[name].append(value)
    request_id = next((value for value in values[REQUEST_ID] if _ID.fullmatch(value)), None)
    parent = values[TRACEPARENT][0] if len(values[TRACEPARENT]) == 1 else ""
    parent = parent if _is_traceparent(parent) else ""
    return Trace(
        request_id or f"req-{uuid.uuid4().hex}",
        parent,
        _list(values[_TRACESTATE], MAX_TRACESTATE) if parent else "",
        _list(values[_BAGGAGE], MAX_BAGGAGE),
    )


_current: ContextVar[Trace | None] = ContextVar("agentmem_trace", default=None)


def current() -> Trace | None:
    return _current.get()


def enter(trace: Trace | None) -> None:
    _current.set(trace)


@contextmanager
def serving(trace: Trace | None) -> Iterator[None]:
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)


class Threads(ThreadPoolExecutor):
    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        context = copy_context()
        return super().submit(lambda: context.run(fn, *args, **kwargs))


def _is_traceparent(value: str) -> bool:
    if len(value) > _MAX_TRACEPARENT or not (matched := _PARENT.fullmatch(value)):
        return False
    version, more = matched.groups()
    return version != "00" or more is None  # later versions may say more


def _list(values: list[str], limit: int) -> str:
    joined = ",".join(values)
    return joined if len(joined) <= limit and _PRINTABLE.fullmatch(joined) else ""


Attribute = str | int | float | bool

LONGEST_ID: Final = 256

AGENT: Final = "agentmem.agent_id"
MODEL: Final = "agentmem.model_id"
REQUEST: Final = "agentmem.request_id"
CANCELLED: Final = "CANCELLED"


Recorder = Callable[[str, Trace, Mapping[str, Attribute]], "Span"]
"""Begins a received request's span."""


class _Tracing:
    recorder: Recorder | None = None


def record_by(recorder: Recorder | None) -> None:
    _Tracing.recorder = recorder


def on() -> bool:
    return _Tracing.recorder is not None


def served(name: str, trace: Trace, attributes: Mapping[str, Attribute]) -> Trace:
    """Return `trace` within a new server span, if tracing is on."""
    if (record := _Tracing.recorder) is None:
        return trace
    return trace.within(record(name, trace, {REQUEST: identifier(trace.request_id), **attributes}))


def present() -> Span | None:
    """Return the current span, if it is recorded."""
    trace = current()
    return None if trace is None or trace.span is None or not trace.span.recording else trace.span


@contextmanager
def within(name: str) -> Iterator[None]:
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
    """Return the name of an error's status."""
    code = getattr(error, "code", None)
    code = code() if callable(code) else code  # a method of a call's error, a value of ours
    if isinstance(error, Exception):
        return str(getattr(code, "name", "INTERNAL"))
    return CANCELLED


def identifier(text: str) -> str:
    """Return an id for logs and traces, without keys' secrets."""
    return without_secrets(text)[:LONGEST_ID]
