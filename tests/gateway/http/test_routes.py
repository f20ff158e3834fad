"""Every REST endpoint on a real socket before a scripted worker: what reaches the worker, and what comes back."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from agentmem import errors
from agentmem.v1 import agent_pb2, inference_pb2, model_pb2, types_pb2
from gateway.api.endpoints import Endpoint
from gateway.api.rest import ENDPOINTS
from gateway.app import Gateway
from tests.gateway.running import answers, events, eventually, running
from tests.gateway.scripted import ScriptedWorker, broken
from tests.gateway.secured import showing

pytestmark = pytest.mark.sampled(2)

KEY = types_pb2.AgentKey(namespace="default", agent_id="a/b", model_id="org/m")
MARCO = types_pb2.AgentKey(namespace="default", agent_id="marco", model_id="demo")
QUESTION = types_pb2.Append(
    messages=types_pb2.Messages(messages=[types_pb2.ChatMessage(role="user", content="Where is the key?")])
)
FILE = {"content-type": "application/octet-stream"}
A = "/v1/agents/a"

WANTED: dict[str, Any] = {
    "ListAgents": agent_pb2.ListAgentsRequest(namespace="default", model_id="org/m"),
    "GetAgent": agent_pb2.GetAgentRequest(key=KEY),
    "DeleteAgent": agent_pb2.DeleteAgentRequest(key=KEY),
    "Generate": inference_pb2.GenerateRequest(key=KEY, append=QUESTION, max_tokens=50, request_id="turn"),
    "Prefill": inference_pb2.PrefillRequest(
        key=KEY, append=types_pb2.Append(text="The key is in the cellar."), request_id="turn"
    ),
    "ForkAgent": agent_pb2.ForkAgentRequest(key=KEY, new_agent_id="polo"),
    "TrimAgent": agent_pb2.TrimAgentRequest(key=KEY, keep_tokens=4),
    "ProbeAgent": agent_pb2.ProbeAgentRequest(key=KEY, append=QUESTION),
    "PrefetchAgent": agent_pb2.PrefetchAgentRequest(key=KEY, tier=types_pb2.TIER_HOT),
    "EvictAgent": agent_pb2.EvictAgentRequest(key=KEY, tier=types_pb2.TIER_HOT),
    "PinAgent": agent_pb2.PinAgentRequest(key=KEY, pinned=True),
    "SetAgentTtl": agent_pb2.SetAgentTtlRequest(key=KEY),
    "SetContextPolicy": agent_pb2.SetContextPolicyRequest(key=KEY, context_policy=types_pb2.CONTEXT_POLICY_SUMMARIZE),
    "ListTurns": agent_pb2.ListTurnsRequest(key=KEY),
    "ListBlocks": agent_pb2.ListBlocksRequest(key=KEY),
    "ListSnapshots": agent_pb2.ListSnapshotsRequest(key=KEY),
    "CreateSnapshot": agent_pb2.CreateSnapshotRequest(key=KEY, name="before"),
    "RestoreSnapshot": agent_pb2.RestoreSnapshotRequest(key=KEY, name="s/1"),
    "DeleteSnapshot": agent_pb2.DeleteSnapshotRequest(key=KEY, name="s/1"),
    "ExportAgent": agent_pb2.ExportAgentRequest(key=KEY),
    "ImportAgent": agent_pb2.ImportAgentRequest(key=KEY),
    "SetTurnHints": agent_pb2.SetTurnHintsRequest(hints=[agent_pb2.TurnHint(key=MARCO, steps=1)]),
    "Abort": inference_pb2.AbortRequest(namespace="default", request_id="0d6e1c7e"),
    "ListModels": model_pb2.ListModelsRequest(),
    "GetModel": model_pb2.GetModelRequest(model_id="org/large"),
    "LoadModel": model_pb2.LoadModelRequest(model_id="org/large"),
    "UnloadModel": model_pb2.UnloadModelRequest(model_id="org/large"),
    "PullModel": model_pb2.PullModelRequest(model_id="org/large"),
    "SearchModels": model_pb2.SearchModelsRequest(),
}
WANTED["SetAgentTtl"].ttl.FromSeconds(86400)
WANTED["SetAgentTtl"].delete_after.FromSeconds(2592000)


OF_THE_WORKER = [one for one in ENDPOINTS if one.rpc.containing_service.name != "WorkflowService"]


@pytest.mark.parametrize("endpoint", OF_THE_WORKER, ids=lambda one: one.rpc.name)
async def test_what_reaches_the_worker(worker: ScriptedWorker, http: httpx.AsyncClient, endpoint: Endpoint) -> None:
    url = endpoint.path.replace("{agent}", "a%2Fb").replace("{name}", "s%2F1").replace("{model}", "org%2Flarge")
    sent: dict[str, Any] = {"headers": {"idempotency-key": "turn", "x-request-id": "trace"}}
    if any(parameter.name == "model" for parameter in endpoint.query):
        sent["params"] = {"model": "org/m"}
    if endpoint.has_body:
        sent["json"] = endpoint.example
    elif endpoint.rpc.client_streaming:
        sent["headers"] |= FILE
    answer = await http.request(endpoint.method, url, **sent)
    assert answer.status_code == 200, answer.text
    (request,) = worker.requests
    assert request == WANTED[endpoint.rpc.name]
    assert worker.metadata[0]["x-request-id"] == "trace"
    assert '"default"' not in answer.text, "namespaces are not REST's"


@pytest.mark.parametrize(
    "agent", ["a/b", "ä 😀", "%2F", "..", ".", "a?b#c&d", "/", "a/fork", "a\x00b", "+", "x" * 256, "\u202e"]
)
async def test_agents_may_have_any_name(worker: ScriptedWorker, http: httpx.AsyncClient, agent: str) -> None:
    encoded = "".join(f"%{byte:02X}" for byte in agent.encode())
    answer = await http.post(f"/v1/agents/{encoded}/fork?model=demo", json={"new_agent_id": agent})
    assert answer.status_code == 200, answer.text
    (request,) = worker.requests
    assert (request.key.agent_id, request.new_agent_id) == (agent, agent)


@pytest.mark.parametrize(
    ("method", "url", "status", "param"),
    [
        ("GET", A, 400, "model"),
        ("GET", f"{A}?model=", 400, "model"),
        ("GET", f"{A}?model=x&model=y", 400, "model"),
        ("GET", f"{A}?model=%ff", 400, "query"),
        ("GET", f"{A}?model=%zz", 400, "query"),
        ("GET", f"{A}?model=demo&force=1", 400, "force"),
        ("GET", f"{A}?" + "&".join(["model=x"] * 99), 400, "query"),
        ("GET", "/v1/agents/%ff?model=demo", 400, "agent"),
        ("GET", "/v1/agents/%?model=demo", 400, "agent"),
        ("GET", "/v1/agents/" + "x" * 257 + "?model=demo", 400, "agent"),
        ("GET", "/v1/agents/?model=demo", 404, None),
        ("GET", f"{A}/nothing?model=demo", 404, None),
        ("GET", "/v1/agents?page_size=many", 400, "page_size"),
        ("GET", "/v1/agents?page_size=99999999999", 400, "page_size"),
        ("GET", "/v1/agents?page_size=3000000000", 400, "page_size"),
        ("DELETE", A, 400, "model"),
        ("DELETE", f"{A}?all_models=false", 400, "model"),
        ("DELETE", f"{A}?all_models=yes", 400, "all_models"),
        ("DELETE", f"{A}?all_models=true&model=demo", 400, "model"),
        ("HEAD", f"{A}/export?model=demo", 405, None),
        ("POST", f"{A}/pin?model=demo", 405, None),
        ("POST", f"{A}/restore?model=demo", 404, None),
        ("POST", f"{A}/evict?model=demo", 415, None),
        ("POST", f"{A}/import?model=demo", 415, None),
    ],
)
async def test_refused_before_the_worker(
    worker: ScriptedWorker, http: httpx.AsyncClient, method: str, url: str, status: int, param: str | None
) -> None:
    answer = await http.request(method, url)
    assert answer.status_code == status
    assert worker.requests == []
    if method != "HEAD":
        assert answer.json()["error"]["param"] == param


async def test_all_models_must_be_said(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    answer = await http.delete(f"{A}?all_models=true&allow_missing=true")
    assert answer.json() == {"deleted": 1, "freed_bytes": 2048}
    wanted = types_pb2.AgentKey(namespace="default", agent_id="a")
    assert worker.requests == [agent_pb2.DeleteAgentRequest(key=wanted, allow_missing=True)]


async def test_what_must_be_said(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    for method, url, field in (
        ("POST", f"{A}/fork?model=m", "new_agent_id"),
        ("POST", f"{A}/trim?model=m", "keep_tokens"),
        ("PUT", f"{A}/pin?model=m", "pinned"),
        ("POST", f"{A}/snapshots?model=m", "name"),
        ("PUT", "/v1/turn-hints", "hints"),
        ("POST", "/v1/generations/abort", "request_id"),
    ):
        answer = await http.request(method, url, json={})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert worker.requests == []


async def test_pages(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    worker.agents = [agent_pb2.Agent(key=types_pb2.AgentKey(agent_id=name, model_id="demo")) for name in "abc"]
    first = (await http.get("/v1/agents?page_size=2")).json()
    rest = (await http.get("/v1/agents", params={"page_token": first["next_page_token"]})).json()
    assert [agent["key"]["agent_id"] for agent in first["agents"] + rest["agents"]] == ["a", "b", "c"]
    assert rest["next_page_token"] == ""
    assert worker.requests[0].page_size == 2
    assert not worker.requests[1].HasField("page_size")


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [
        (errors.InvalidArgument("key.agent_id", "is wrong"), 400, "agent"),
        (errors.InvalidArgument("key.model_id", "is wrong"), 400, "model"),
        (errors.InvalidArgument("request_id", "is wrong"), 400, "Idempotency-Key"),
        (errors.InvalidArgument("append.messages.messages[0]", "is wrong"), 400, "append.messages.messages[0]"),
        (errors.NotFound("model", "m"), 404, "model"),
        (errors.Aborted("moved on"), 409, None),
        (errors.ResourceExhausted("full", retry_after=7.0), 429, None),
        (RuntimeError("secret"), 500, None),
    ],
)
async def test_the_workers_refusals(
    worker: ScriptedWorker, http: httpx.AsyncClient, error: Exception, status: int, param: str | None
) -> None:
    worker.error = error
    for path, body in (("generate", {"prompt": "x"}), ("prefill", {"prompt": "x"})):
        answer = await http.post(f"{A}/{path}?model=m", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
        assert "secret" not in answer.text
        assert answer.headers.get("retry-after") == ("7" if status == 429 else None)


async def test_a_turn_as_json(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    body = {"prompt": "x", "label": "chat", "if_version": 3, "cache_policy": "read_only", "expiry": {"ttl": 60}}
    answer = await http.post(f"/v1/agents/{quote('ä/b', safe='')}/generate?model=demo", json=body)
    assert answer.headers["x-agent-id"] == "%C3%A4%2Fb"
    said = answer.json()
    assert (said["text"], said["token_ids"]) == ("Hello 🌍", [1, 1, 1])
    assert said["started"]["cache"]["cached"] == {"hot": 7, "warm": 5}
    assert (said["finished"]["reason"], said["finished"]["durable"]) == ("stop", True)
    assert said["finished"]["timings"]["decode"] == 0.5
    (turn,) = worker.requests
    assert (turn.label, turn.if_version, turn.cache_policy) == ("chat", 3, inference_pb2.CACHE_POLICY_READ_ONLY)
    assert turn.expiry.ttl.seconds == 60


async def test_a_turn_as_events(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    answer = await http.post(f"{A}/generate?model=demo", json={"prompt": "x", "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    names, said = zip(*events(answer.text), strict=True)
    assert names == ("started", "delta", "delta", "delta", "finished")
    assert "".join(one["text"] for one in said[1:4]) == "Hello 🌍"
    whole = (await http.post(f"{A}/generate?model=demo", json={"prompt": "x"})).json()
    assert (said[0], said[4]) == (whole["started"], whole["finished"])


async def test_a_failed_turn_ends_as_a_failure(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    worker.script = broken
    answer = await http.post(f"{A}/generate?model=demo", json={"prompt": "x", "stream": True})
    *_, (name, said) = events(answer.text)
    assert (name, said["error"]["code"]) == ("error", "unavailable")
    answer = await http.post(f"{A}/generate?model=demo", json={"prompt": "x"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")


async def test_progress_as_events(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    worker.stages = [("read", 0.25), ("read", 1.0)]
    answer = await http.post("/v1/model-registry/demo/load", json={})
    assert answer.headers["content-type"].startswith("text/event-stream")
    said = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    assert [(one["stage"], one["progress"]) for one in said] == [("read", 0.25), ("read", 1.0), ("ready", 1.0)]
    assert said[0]["model"] is None
    assert said[2]["model"]["model_id"] == "demo"


async def test_a_stream_that_fails(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    worker.load_error = errors.FailedPrecondition("it does not fit")
    answer = await http.post("/v1/model-registry/demo/load", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "failed_precondition")
    worker.stages = [("read", 0.25)]
    answer = await http.post("/v1/model-registry/demo/load", json={})
    assert answer.status_code == 200
    assert '"stage":"read"' in answer.text
    *_, (name, said) = events(answer.text.partition("\n\n")[2])
    assert (name, said["error"]["code"]) == ("error", "failed_precondition")


async def test_a_stream_that_says_nothing_is_there_all_the_same(
    worker: ScriptedWorker, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.http.streaming.KEEP_ALIVE_SECONDS", 0.05)
    worker.holds = asyncio.Event()
    async with (
        running(run_dir) as gateway,
        showing(gateway, "") as (http, _),
        http.stream("POST", "/v1/model-registry/demo/load", json={}) as answer,
    ):
        parts = answer.aiter_text()
        assert await anext(parts) == ": keep-alive\n\n"
        worker.holds.set()
        assert '"stage":"ready"' in "".join([part async for part in parts])


async def test_infinite_numbers_are_json(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    worker.models[0].kv_bits_measured.add(kv_bits="4", kl_divergence=float("inf"))
    told = (await http.get("/v1/model-registry/demo")).json()["model"]
    assert told["kv_bits_measured"][0]["kl_divergence"] == sys.float_info.max


async def test_prefill_is_counted_as_a_generation(
    worker: ScriptedWorker, gateway: Gateway, http: httpx.AsyncClient
) -> None:
    await http.post(f"{A}/prefill?model=demo", json={"prompt": "x"})
    await http.post(f"{A}/probe?model=demo", json={"prompt": "x"})
    count = gateway.metrics.registry.get_sample_value
    assert count("agentmem_gateway_e2e_request_latency_seconds_count", {"door": "http"}) == 1
    route = "/v1/agents/{agent}/probe"
    await eventually(lambda: answers(gateway, route, "200") == 1)  # after the answer has gone out


async def test_the_log_names_the_agent_and_says_nothing(
    worker: ScriptedWorker, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await http.post(f"{A}/generate?model=demo", json={"prompt": "a secret"})
    await eventually(lambda: any(record.name == "gateway.http.middleware" for record in caplog.records))
    ours = [vars(record) for record in caplog.records if record.name.startswith("gateway.http")]
    (line,) = [record["fields"] for record in ours if record["msg"] == "answered"]
    assert (line["agent"], line["model"], line["route"]) == ("a", "demo", "/v1/agents/{agent}/generate")
    assert "a secret" not in str(ours)
