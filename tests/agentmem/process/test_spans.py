from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from agentmem import errors, tracing
from agentmem import tracing as spans
from agentmem.process.otlp import Traces
from tests.otlp import Collector, Seen, collecting


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    with collecting() as collector:
        traces = Traces("test", f"http://{collector.address}")
        yield collector
        traces.stop()
        assert not spans.on()


def received(flags: str = "01") -> tuple[str, str, tracing.Trace]:
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return trace_id, span_id, tracing.received([("traceparent", f"00-{trace_id}-{span_id}-{flags}")])


async def sent(collector: Collector, trace_id: str, *names: str) -> dict[str, Seen]:
    found = await collector.trace(trace_id, {("test", name) for name in names})
    return {span.name: span for span in found}


def test_off_a_request_is_as_it_was_received() -> None:
    trace = received()[2]
    assert spans.served("x", trace, {}) is trace
    with tracing.serving(trace), spans.within("y"):
        assert spans.present() is None
        assert tracing.current() is trace


async def test_spans_and_what_calls_carry(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_id, caller, trace = received()
    within = spans.served("request", trace, {spans.AGENT: "a"})
    assert within.span is not None
    assert dict(within.metadata)["traceparent"] == f"00-{trace_id}-{within.span.span_id}-01"
    assert dict(trace.answer)["traceparent"] == trace.traceparent
    with tracing.serving(within):
        with spans.within("well"):
            pass
        with pytest.raises(errors.NotFound), spans.within("refused"):
            raise errors.NotFound("agent", "canary")
        with pytest.raises(asyncio.CancelledError), spans.within("left"):
            raise asyncio.CancelledError
        earlier = time.monotonic() - 100
        child = within.span.child("earlier", earlier, {"agentmem.tokens": 3})
        child.note("first token", earlier + 1)
        child.end(at=earlier + 2.5)
    within.span.rename("renamed")
    within.span.end()
    within.span.end("INTERNAL")
    within.span.set({"late": True})
    within.span.child("afterwards").end()
    seen = await sent(collector, trace_id, "well", "refused", "left", "earlier", "renamed", "afterwards")
    root = seen.pop("renamed")
    assert (root.parent, root.failure, root.kind) == (caller, "", "server")
    assert root.attributes == {spans.AGENT: "a", spans.REQUEST: trace.request_id}
    assert {span.parent for span in seen.values()} == {root.id}
    assert {name: span.failure for name, span in seen.items() if span.failure} == {
        "refused": "NOT_FOUND", "left": "CANCELLED",
    }  # fmt: skip
    assert seen["earlier"].nanoseconds == pytest.approx(2.5e9, abs=1000)
    assert seen["earlier"].events["first token"] - seen["earlier"].start == pytest.approx(1e9, abs=1000)
    assert collector.resources["agentmem-test"]["service.version"]
    assert b"canary" not in b"".join(collector.raw)


async def test_the_time_of_day_may_be_set_meanwhile(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_id, _, trace = received()
    within = spans.served("request", trace, {})
    assert within.span is not None
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    with tracing.serving(within), spans.within("child"):
        pass
    within.span.end()
    seen = await sent(collector, trace_id, "request", "child")
    assert seen["request"].encloses(seen["child"])


async def test_what_is_not_sampled_is_passed_on_as_that(collector: Collector) -> None:
    trace_id, _, trace = received("00")
    within = spans.served("request", trace, {})
    assert within.traceparent.startswith(f"00-{trace_id}-")
    assert within.traceparent.endswith("-00")
    with tracing.serving(within):
        assert spans.present() is None
        with spans.within("child"):
            pass
    seen_id, _, trace = received()
    after = spans.served("after", trace, {}).span
    assert after is not None
    after.end()
    await sent(collector, seen_id, "after")
    assert collector.spans(trace_id) == []


def test_names_of_failures_and_ids() -> None:
    assert spans.failure_of(errors.ResourceExhausted("x")) == "RESOURCE_EXHAUSTED"
    assert spans.failure_of(asyncio.CancelledError()) == "CANCELLED"
    assert spans.failure_of(ValueError("canary")) == "INTERNAL"
    call = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
    assert spans.failure_of(call) == "UNAVAILABLE"
    assert spans.identifier("a" * 1000) == "a" * spans.LONGEST_ID
    assert "s" * 30 not in spans.identifier(f"am_{'0' * 12}_{'s' * 30}")


def test_a_collector_that_is_away_is_logged_and_holds_up_no_stop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    with collecting() as gone:
        pass
    traces = Traces("test", f"http://{gone.address}")
    span = spans.served("x", received()[2], {}).span
    assert span is not None
    span.end()
    traces.stop()
    assert "Failed to export traces" in caplog.text
    assert not [thread for thread in threading.enumerate() if thread.name == "OtelBatchSpanRecordProcessor"]
