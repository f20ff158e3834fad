"""Traces as a collector gets them from gateway, worker and store: one for each request, whole, and with right times."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio

from agentmem.v1 import inference_pb2, types_pb2
from tests.otlp import Collector, Seen, collecting
from tests.system.client import Client, chat
from tests.system.stack import Stack, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

GENERATE = "InferenceService/Generate"
OPEN, COMMIT = "CacheStoreService/OpenCache", "CacheStoreService/CommitTurn"
APART = 100_000_000
"""Nanoseconds by which a busy machine may end a handler after its answer has arrived in another process."""
TURN = {
    *(("gateway", GENERATE), ("worker", GENERATE), ("store", OPEN), ("store", COMMIT), ("store", "transaction")),
    *(("worker", name) for name in ("queue", "match", "load", "prefill", "decode", "commit")),
}
LONG = {"max_tokens": 3000, "sampling": types_pb2.Sampling(logit_bias={2: -100})}  # no end of turn


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tiny: Path, collector: Collector) -> AsyncIterator[Stack]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        flags = ("--otlp", collector.address, "--log-format", "json", "--log-level", "debug")
        options = {"worker_flags": flags, "store_flags": flags, "gateway_flags": flags}
        async with running(f"tiny={tiny}", "store", "worker", "gateway", **options) as stack:
            yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> Client:
    return await stack.client("gateway")


def caller(*, sampled: bool = True) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    parent = f"00-{trace_id}-{span_id}-0{int(sampled)}"
    return trace_id, span_id, (("traceparent", parent), ("x-request-id", f"id-of-{trace_id}"))


async def said(
    client: Client, agent: str, metadata: Any, text: str = "the boat is green", **arguments: Any
) -> tuple[inference_pb2.Started, inference_pb2.Finished]:
    append = types_pb2.Append(messages=chat(("user", text)))
    arguments = {"append": append, "max_tokens": 4, **arguments}
    call = client.inference.Generate(client.request(agent, **arguments), metadata=metadata, timeout=60)
    events = [event async for event in call]
    return events[0].started, events[-1].finished


def only(spans: list[Seen], service: str, name: str) -> Seen:
    (found,) = several(spans, service, name)
    return found


def several(spans: list[Seen], service: str, name: str) -> list[Seen]:
    return [span for span in spans if (span.service, span.name) == (service, name)]


def check_tree(spans: list[Seen], parent: str) -> None:
    """One root, whose parent is the caller's span; all others within their parents, but what follows the answer."""
    by_id = {span.id: span for span in spans}
    (root,) = [span for span in spans if span.parent not in by_id]
    assert (root.service, root.parent, root.kind) == ("gateway", parent, "server")
    for span in spans:
        if span is root:
            continue
        above = by_id[span.parent]
        afterwards = span.name.endswith(("StageBlocks", "PublishBlocks"))
        assert above.encloses(span, APART if above.service != span.service else 0) or afterwards, (above, span)
        assert span.kind == ("server" if "/" in span.name else "internal")


def seconds(duration: Any) -> float:
    return float(duration.ToTimedelta().total_seconds())


async def test_a_turn_is_one_trace_with_all_its_phases(stack: Stack, collector: Collector, client: Client) -> None:
    trace_id, parent, metadata = caller()
    _, finished = await said(client, "ada", metadata, "the boat is green " * 170)
    spans = await collector.trace(trace_id, TURN)
    check_tree(spans, parent)
    door, worker = only(spans, "gateway", GENERATE), only(spans, "worker", GENERATE)
    assert worker.parent == door.id
    commit = only(spans, "worker", "commit")
    stored = only(spans, "store", COMMIT)
    assert (commit.parent, stored.parent) == (worker.id, commit.id)
    assert stored.id in {span.parent for span in several(spans, "store", "transaction")}
    asking = [*several(spans, "worker", "match"), *several(spans, "worker", "load")]
    assert {span.parent for span in several(spans, "store", OPEN)} <= {span.id for span in asking}
    for span in (door, worker):
        assert span.attributes.items() >= {
            "agentmem.agent_id": "ada", "agentmem.model_id": "tiny", "agentmem.request_id": f"id-of-{trace_id}",
            "rpc.system": "grpc", "rpc.grpc.status_code": 0,
        }.items()  # fmt: skip
    prompt = finished.usage.prompt_tokens
    assert worker.attributes.items() >= {
        "agentmem.match": "new", "agentmem.tier": "none", "agentmem.reused_tokens": 0,
        "agentmem.prompt_tokens": prompt, "agentmem.generated_tokens": finished.usage.completion_tokens,
    }.items()  # fmt: skip
    for service in ("gateway", "worker", "store"):
        assert f'"request_id": "id-of-{trace_id}"' in stack.logs(service)
    check_chunks(spans, prompt, at_least=3)  # the last token alone, after what is too long to ride
    assert not [span for span in spans if span.failure]
    check_times(spans, finished.timings)


def check_chunks(spans: list[Seen], tokens: int, at_least: int = 1) -> None:
    chunks = [
        (s.attributes["agentmem.position"], s.attributes["agentmem.tokens"]) for s in spans if s.name == "prefill"
    ]
    assert len(chunks) >= at_least
    assert [position for position, _ in chunks] == [sum(n for _, n in chunks[:i]) for i in range(len(chunks))]
    assert sum(length for _, length in chunks) == tokens


def check_times(spans: list[Seen], timings: types_pb2.Timings) -> None:
    """The phases follow each other without a gap as far as the engine, and are as long as the turn has told."""
    worker = only(spans, "worker", GENERATE)
    phases = [span for span in spans if span.parent == worker.id and span.service == "worker"]
    before = [span for span in phases if span.name in ("queue", "match", "load")]
    assert [span.name for span in before] == ["queue", "match", "queue", "load", "queue", "load"]
    for earlier, later in pairwise(before):
        assert abs(later.start - earlier.end) < 1000, "but for rounding"
    waited = (before[-1].end - before[0].start) / 1e9
    assert waited == pytest.approx(seconds(timings.queue) + seconds(timings.load), abs=5e-6)
    decode = only(spans, "worker", "decode")
    assert decode.nanoseconds / 1e9 == pytest.approx(seconds(timings.decode), abs=5e-6)
    first = (decode.events["first token"] - before[0].start) / 1e9
    assert first == pytest.approx(seconds(timings.time_to_first_token), abs=5e-6)
    assert decode.start <= decode.events["first token"] <= decode.end
    prefill = several(spans, "worker", "prefill")
    assert before[-1].end <= prefill[0].start + 1000
    assert sum(span.nanoseconds for span in prefill) / 1e9 <= seconds(timings.prefill) + 5e-6
    assert (decode.start - before[-1].end) / 1e9 == pytest.approx(seconds(timings.prefill), abs=5e-6)
    assert decode.end <= only(spans, "worker", "commit").start


@pytest.mark.slow
async def test_http_and_a_restored_agent(stack: Stack, collector: Collector, client: Client) -> None:
    await said(client, "warm", caller()[2], "the boat is green " * 60)
    evicting = await stack.client()
    await stack.on_disk("warm")
    stack.kill("worker")
    await stack.up("worker")
    await evicting.close()
    trace_id, parent, metadata = caller()
    history = {"role": "user", "content": "the boat is green " * 60}
    body = {"model": "tiny", "messages": [history], "max_tokens": 3}
    async with httpx.AsyncClient(base_url=stack.url, timeout=60) as http:
        while (await http.get("/v1/models")).status_code == 503:  # The gateway has yet to find the new worker.
            await asyncio.sleep(0.05)
        answer = await http.post("/v1/chat/completions", json=body, headers={"X-Agent-ID": "warm", **dict(metadata)})
    assert answer.status_code == 200, answer.text
    assert answer.headers["traceparent"] == metadata[0][1], "as without tracing"
    names = (TURN - {("gateway", GENERATE), ("worker", "prefill")}) | {("gateway", "POST /v1/chat/completions")}
    spans = await collector.trace(trace_id, names)
    check_tree(spans, parent)
    door = only(spans, "gateway", "POST /v1/chat/completions")
    assert door.attributes.items() >= {
        "http.request.method": "POST", "http.route": "/v1/chat/completions", "http.response.status_code": 200,
        "agentmem.agent_id": "warm", "agentmem.model_id": "tiny", "agentmem.request_id": f"id-of-{trace_id}",
    }.items()  # fmt: skip
    worker = only(spans, "worker", GENERATE)
    reused = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    for name in ("match", "prompt_tokens", "reused_tokens", "generated_tokens"):
        assert door.attributes[f"agentmem.{name}"] == worker.attributes[f"agentmem.{name}"]
    assert worker.attributes["agentmem.tier"] == "warm"
    assert worker.attributes["agentmem.reused_tokens"] == reused > 200


async def test_a_collector_that_says_nothing_holds_nobody_up(tiny: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        flags = ("--otlp", f"127.0.0.1:{silent.getsockname()[1]}")
        async with running(f"tiny={tiny}", "store", store_flags=flags) as stack:
            await stack.ledger("nobody")
            process = stack.processes["store"]
            process.terminate()
            assert await asyncio.to_thread(process.wait, 25) == 0  # OpenTelemetry would wait for 30 s
            assert "stopping" in stack.logs("store")


KEY = f"am_0123456789ab_{secrets.token_urlsafe(32)}"
PROMPT, SYSTEM, TOOL = "canary-of-the-prompt", "canary-of-the-system", "canary-of-a-tool"


async def test_no_content_no_key_and_no_probe_is_in_logs_and_traces(
    stack: Stack, collector: Collector, client: Client
) -> None:
    """The services log at debug level. Keys are also where they have no place."""
    shown = {"authorization": f"Bearer {KEY}", "x-api-key": KEY}
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 12, "seed": 1}
    trace_id, _, metadata = caller()
    async with httpx.AsyncClient(base_url=stack.url, timeout=60, headers=shown) as http:
        answer = await http.post("/v1/chat/completions", json=body, headers=dict(metadata))
        said_by_it = answer.json()["choices"][0]["message"]["content"]
        for path in ("/healthz", "/readyz", "/metrics"):
            await http.get(path)
        for headers in ({"X-Agent-ID": KEY}, {"X-Request-ID": KEY}, {"Idempotency-Key": KEY}):
            assert (await http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
        for wrong in ({"tools": TOOL}, {"temperature": PROMPT}, {"logit_bias": {PROMPT: 1}}):
            assert (await http.post("/v1/chat/completions", json={**body, **wrong})).status_code == 400
        assert (await http.post("/v1/chat/completions", json={**body, PROMPT: SYSTEM})).status_code == 200
        for path in (f"/v1/agents/{KEY}", f"/v1/{PROMPT}"):
            await http.get(path)
    _, writer = await asyncio.open_connection("127.0.0.1", stack.ports["http"])
    writer.write(f"{PROMPT} {KEY}\r\n\r\n".encode())
    await writer.drain()
    writer.close()
    for arguments in (
        {"if_version": 99},
        {"stop": [""]},
        {"json_schema": json.dumps({"type": PROMPT})},
        {"sampling": types_pb2.Sampling(temperature=-1)},
    ):
        with pytest.raises(grpc.aio.AioRpcError):
            await said(client, "careless", (("authorization", f"Bearer {KEY}"),), PROMPT, **arguments)
    await collector.trace(trace_id, TURN - {("gateway", GENERATE)})
    last_id, _, metadata = caller()
    await said(client, "last", metadata)
    await collector.trace(last_id, TURN)
    logs = {service: stack.logs(service) for service in ("gateway", "worker", "store")}
    told = [json.loads(line) for log in logs.values() for line in log.splitlines()]
    assert {line["level"] for line in told} >= {"debug", "info"}
    assert {line["message"] for line in told} >= {"answered", "turn finished", "turn failed", "turn refused"}
    traces = b"".join(collector.raw).decode("utf-8", "replace")
    for probe in ("/healthz", "/readyz", "/metrics", "grpc.health"):
        assert probe not in traces
    for canary in (PROMPT, SYSTEM, TOOL, KEY.split("_", 2)[2], said_by_it):
        assert len(canary) > 8, "a shorter one is found by chance"
        for service, log in logs.items():
            assert canary not in log, [line for line in log.splitlines() if canary in line]
            assert json.dumps(canary)[1:-1] not in log, service
        assert canary not in traces
    assert any(line.get("agent", "").startswith("am_0123456789ab_…") for line in told), "its id is told"


async def test_failures_have_their_status(collector: Collector, client: Client, stack: Stack) -> None:
    trace_id, parent, metadata = caller()
    with pytest.raises(grpc.aio.AioRpcError) as aborted:
        await said(client, "bob", metadata, if_version=7)
    assert aborted.value.code() is grpc.StatusCode.ABORTED
    failing = {("gateway", GENERATE), ("worker", GENERATE), ("worker", "match")}
    spans = await collector.trace(trace_id, failing)
    check_tree(spans, parent)
    failed = {(span.service, span.name): span.failure for span in spans if span.failure}
    assert failed == dict.fromkeys(failing, "ABORTED")
    assert only(spans, "worker", GENERATE).attributes["rpc.grpc.status_code"] == 10

    trace_id, _, metadata = caller()
    async with httpx.AsyncClient(base_url=stack.url, timeout=60) as http:
        assert (await http.post("/v1/chat/completions", json={}, headers=dict(metadata))).status_code == 400
    (refused,) = await collector.trace(trace_id, {("gateway", "POST /v1/chat/completions")})
    assert (refused.failure, refused.attributes["http.response.status_code"]) == ("400", 400)
