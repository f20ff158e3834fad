import asyncio

import grpc
import httpx
import openai
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from agentmem.process.health import reason
from agentmem.v1 import model_pb2
from gateway.app import Gateway

from ..running import eventually
from ..scripted import ScriptedWorker


async def test_models(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in sdk.models.list()] == ["demo", "org/large"]
    assert (await sdk.models.retrieve("demo")).object == "model"


async def test_a_models_name_may_hold_slashes(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/models/org/large")).json()["id"] == "org/large"
    assert (await http.get("/v1/models/org%2Flarge")).json()["id"] == "org/large"
    assert (await http.get("/v1/models/")).status_code == 404
    missing = await http.get("/v1/models/nope")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_alive_without_a_worker(http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).status_code == 200


async def test_readiness_and_health_are_the_workers(
    worker: ScriptedWorker, gateway: Gateway, http: httpx.AsyncClient, channel: grpc.aio.Channel
) -> None:
    health, up = health_pb2_grpc.HealthStub(channel), gateway.metrics.registry.get_sample_value

    async def becomes(status: int, told: str) -> None:
        """Wait until all say so: an answer holds for a moment, and so does what a stop is in."""
        async with asyncio.timeout(30):
            while (answer := await http.get("/readyz")).status_code != status or told not in answer.text:
                await asyncio.sleep(0.01)
            serving = health_pb2.HealthCheckResponse.ServingStatus.Value("SERVING" if status == 200 else "NOT_SERVING")
            while (await health.Check(health_pb2.HealthCheckRequest())).status != serving:
                await asyncio.sleep(0.01)
        await eventually(lambda: up("agentmem_peer_up", {"peer": "worker"}) == (status == 200))

    assert (await http.get("/readyz")).json() == {"status": "ready"}
    await becomes(200, "ready")
    assert (up("agentmem_ready"), up("agentmem_peer_up", {"peer": "store"})) == (1, 0)
    await worker.server.set_serving(False)
    await becomes(503, "NOT_SERVING")
    await worker.server.set_serving(True)
    await becomes(200, "ready")
    await worker.stop()
    await becomes(503, "cannot be reached")


async def test_what_is_waited_for_while_the_worker_loads_its_model(
    worker: ScriptedWorker, gateway: Gateway, http: httpx.AsyncClient, channel: grpc.aio.Channel
) -> None:
    model = worker.models[0]
    model.state = model_pb2.MODEL_STATE_LOADING
    model.progress.CopyFrom(model_pb2.LoadProgress(stage="measure", share=0.4, once=True))
    model.progress.remaining.FromSeconds(12)
    await worker.server.set_serving(False)
    await eventually(lambda: gateway._peers.loading is not None)
    answer = await http.get("/readyz")
    said = "loading demo: measuring how few bits its KV needs, 40 %, once per model, about 12 s left"
    assert (answer.status_code, answer.json()["reason"].partition("; ")[0]) == (503, said)
    told = {"model": "demo", "stage": "measure", "share": 0.4, "once": True, "remaining_seconds": 12.0}
    assert answer.json()["loading"] == told
    check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert (await check).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert said in await reason(check)
    overview = (await http.get("/v1/overview")).json()["processes"][0]
    assert overview["state"] == "not_ready" and said in overview["why"]
    model.ClearField("progress")
    await worker.server.set_serving(True)
    await eventually(lambda: gateway._peers.unready == "")
    assert (await http.get("/readyz")).json() == {"status": "ready"}


async def test_metrics(worker: ScriptedWorker, http: httpx.AsyncClient, gateway: Gateway) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    await http.post("/v1/chat/completions", json=body, headers={"X-Agent-ID": "secret-agent"})
    await http.get("/v1/models/secret-model")
    await http.get("/secret-path")
    page = (await http.get("/metrics")).text
    assert "secret" not in page
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert all(family.documentation for family in families.values())
    forked = [each for each in families["agentmem_gateway_agents_resolved"].samples if each.labels == {"how": "forked"}]
    assert [each.value for each in forked if each.name.endswith("_total")] == [0], "what can be known begins at zero"
    counted = {
        (sample.labels["route"], sample.labels["method"], sample.labels["code"]): sample.value
        for sample in families["agentmem_http_requests"].samples
        if sample.name.endswith("_total")
    }
    assert counted[("/v1/chat/completions", "POST", "200")] == 1
    assert counted[("/v1/models/{id:path}", "GET", "404")] == 1
    assert counted[("unmatched", "GET", "404")] == 1
    assert gateway.metrics.registry.get_sample_value(
        "agentmem_gateway_e2e_request_latency_seconds_count", {"door": "http"}
    ) == 1  # fmt: skip
