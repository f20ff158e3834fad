import asyncio

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families

from gateway.app import Gateway

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


async def becomes(http: httpx.AsyncClient, status: int, told: str) -> None:
    """Wait until /readyz has this status and says that: an answer holds for a moment, and so does what a stop is in."""
    async with asyncio.timeout(30):
        while (answer := await http.get("/readyz")).status_code != status or told not in answer.text:
            await asyncio.sleep(0.01)


async def test_readiness_is_the_workers(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    assert (await http.get("/readyz")).json() == {"status": "ready"}
    await worker.server.set_serving(False)
    await becomes(http, 503, "NOT_SERVING")
    await worker.server.set_serving(True)
    await becomes(http, 200, "ready")
    await worker.stop()
    await becomes(http, 503, "cannot be reached")


async def test_metrics(worker: ScriptedWorker, http: httpx.AsyncClient, gateway: Gateway) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    await http.post("/v1/chat/completions", json=body, headers={"X-Agent-ID": "secret-agent"})
    await http.get("/v1/models/secret-model")
    await http.get("/secret-path")
    page = (await http.get("/metrics")).text
    assert "secret" not in page
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert all(family.documentation for family in families.values())
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
