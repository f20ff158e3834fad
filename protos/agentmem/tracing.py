"""Which request the running code serves: its id and W3C trace context, from the doors to the store and back.

One context variable holds it: tasks and `asyncio.to_thread` inherit it, so do `Threads`.
Servers set it from a call's metadata and channels add it to outgoing calls (`agentmem.traced_calls`); every line of the
log has the id (`agentmem.logs`). It is for tracing only: what is not well-formed is dropped, and never refused.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from agentmem.spans import Span

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


@dataclass(frozen=True)
class Trace:
    """One request. `request_id` is well-formed and never empty; the other texts are well-formed or empty.

    `span` is the one that is worked on, if this process makes any (`agentmem.spans`); then `traceparent` is its own.
    """

    request_id: str
    traceparent: str = ""
    tracestate: str = ""
    baggage: str = ""
    span: Span | None = field(default=None, repr=False)

    def within(self, span: Span) -> Trace:
        """The same request, at work on `span`."""
        return replace(self, traceparent=span.traceparent, span=span)

    @cached_property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What the calls that the request makes carry."""
        pairs = (
            (REQUEST_ID, self.request_id),
            (TRACEPARENT, self.traceparent),
            (_TRACESTATE, self.tracestate),
            (_BAGGAGE, self.baggage),
        )
        return tuple(pair for pair in pairs if pair[1])

    @cached_property
    def answer(self) -> tuple[tuple[str, str], ...]:
        """What the caller gets back of what was received: the id, and the traceparent that it gave."""
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
    """The request that this code serves; None where it serves none."""
    return _current.get()


def enter(trace: Trace | None) -> None:
    """From here on, this task serves that request, to its end or the next `enter`."""
    _current.set(trace)


@contextmanager
def serving(trace: Trace | None) -> Iterator[None]:
    """Within the block, this task serves that request."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)


class Threads(ThreadPoolExecutor):
    """Threads that serve the request that gave them their work, as `asyncio.to_thread` does."""

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
