"""The request that the running code serves: its id, W3C trace context and span, from the gateway to the store and back.

One context variable holds it: tasks and `asyncio.to_thread` inherit it, so do `Threads`.
Servers set it from a call's metadata and channels add it to outgoing calls (`agentmem.process.rpc`); every line of the
log has the id (`agentmem.process.logs`). It is for tracing only: what is not well-formed is dropped, and never refused.

Spans: what a trace shows of a request, and nothing at all where tracing is off.

    GATEWAY  POST /v1/chat/completions, agentmem.v1.InferenceService/Generate, …: one for each request at the gateway
    WORKER   └ agentmem.v1.InferenceService/Generate, …: one for each RPC
                ├ queue, match, load, prefill (one for each chunk), decode: see inference_service.turns.timing
                ├ commit
    STORE       │  └ agentmem.v1.CacheStoreService/CommitTurn, …
                │     └ transaction
                └ …/StageBlocks, …/PublishBlocks: after the answer

`agentmem.process.otlp` turns them on. The one that is being worked on is `tracing.current().span`, and its traceparent
is what calls to others carry. A caller that says that it is not sampled gets none, and passes on that it has none.

Times are those of `time.monotonic`. Spans have ids, lengths and durations, and no text of prompts or answers.
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
"""Printable ASCII characters of a request's id; no spaces."""
MAX_TRACESTATE: Final = 512
"""Characters of tracestate, all its lines together: what W3C says must be passed on."""
MAX_BAGGAGE: Final = 8192
"""Characters of baggage, likewise."""
_MAX_TRACEPARENT = 256

_ID = re.compile(rf"[!-~]{{1,{MAX_REQUEST_ID}}}")
_PRINTABLE = re.compile(r"[ -~]+")
_PARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")

_P = ParamSpec("_P")
_T = TypeVar("_T")

SHOWN: Final = re.compile(r"am_([0-9a-f]{12})_([A-Za-z0-9_-]{20,200})")
"""A key as its owner has it: its id and its secret."""


def without_secrets(text: str) -> str:
    """Return `text` without the secrets of keys in it; their ids stay."""
    return SHOWN.sub(r"am_\1_…", text) if "am_" in text else text


@dataclass(frozen=True)
class Trace:
    """One request. `request_id` is well-formed and never empty; the other texts are well-formed or empty.

    `span` is the one that is worked on, if this process makes any (`agentmem.tracing`); then `traceparent` is its own.
    """

    request_id: str
    traceparent: str = ""
    tracestate: str = ""
    baggage: str = ""
    span: Span | None = field(default=None, repr=False)

    def within(self, span: Span) -> Trace:
        """Return the same request within `span`."""
        return replace(self, traceparent=span.traceparent, span=span)

    @cached_property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of calls made for the request."""
        pairs = (
            (REQUEST_ID, self.request_id),
            (TRACEPARENT, self.traceparent),
            (_TRACESTATE, self.tracestate),
            (_BAGGAGE, self.baggage),
        )
        return tuple(pair for pair in pairs if pair[1])

    @cached_property
    def answer(self) -> tuple[tuple[str, str], ...]:
        """The metadata that the caller gets back: the id, and the traceparent that it sent."""
        return self.metadata[: 2 if self.traceparent else 1]


def received(pairs: Iterable[tuple[str, str | bytes]]) -> Trace:
    """The trace of a call with these headers or metadata, names in lower case; with an id of its own if it needs one.

    Without a valid traceparent there is no tracestate, as W3C wants it.
    """
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
    """Return the request that this code serves, if any."""
    return _current.get()


def enter(trace: Trace | None) -> None:
    """Set the request that this task serves, to its end or the next `enter`."""
    _current.set(trace)


@contextmanager
def serving(trace: Trace | None) -> Iterator[None]:
    """Set the request that this task serves within the block."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)


class Threads(ThreadPoolExecutor):
    """A thread pool whose work runs in the context of its submitter, as that of `asyncio.to_thread` does."""

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
"""Characters of an id from a request, in logs and traces. Those that are taken are shorter."""

AGENT: Final = "agentmem.agent_id"
MODEL: Final = "agentmem.model_id"
REQUEST: Final = "agentmem.request_id"
CANCELLED: Final = "CANCELLED"


Recorder = Callable[[str, Trace, Mapping[str, Attribute]], "Span"]
"""Begins the span of a request that was received: its name, its trace, its attributes."""


class _Tracing:
    recorder: Recorder | None = None


def record_by(recorder: Recorder | None) -> None:
    """Record this process's spans by `recorder` from now on; None records none."""
    _Tracing.recorder = recorder


def on() -> bool:
    """Whether spans are recorded."""
    return _Tracing.recorder is not None


def served(name: str, trace: Trace, attributes: Mapping[str, Attribute]) -> Trace:
    """Return `trace` within a new server span of that name; unchanged where tracing is off."""
    if (record := _Tracing.recorder) is None:
        return trace
    return trace.within(record(name, trace, {REQUEST: identifier(trace.request_id), **attributes}))


def present() -> Span | None:
    """Return the current span; None where none is recorded."""
    trace = current()
    return None if trace is None or trace.span is None or not trace.span.recording else trace.span


@contextmanager
def within(name: str) -> Iterator[None]:
    """Run the block within a child span."""
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
    """Return the name of an error's status, without its text."""
    code = getattr(error, "code", None)
    code = code() if callable(code) else code  # a call's error has a method, ours have a value
    if isinstance(error, Exception):
        return str(getattr(code, "name", "INTERNAL"))
    return CANCELLED


def identifier(text: str) -> str:
    """Return an id as logs and traces have it: without keys that were given as ids, cut to LONGEST_ID."""
    return without_secrets(text)[:LONGEST_ID]
