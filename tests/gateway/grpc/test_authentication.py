"""HTTP and gRPC with keys: who gets in, for how long, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem.errors import ResourceExhausted, from_rpc
from agentmem.v1 import agent_pb2, agent_pb2_grpc, inference_pb2, inference_pb2_grpc, model_pb2, model_pb2_grpc
from tests.gateway.running import answers, eventually, running
from tests.gateway.scripted import ScriptedWorker, endless
from tests.gateway.secured import add_key, revoke, secured, showing

BODY = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}


def agents(channel: grpc.aio.Channel) -> Any:
    return agent_pb2_grpc.AgentServiceStub(channel)


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_a_key_is_a_namespace_at_both_doors(worker: ScriptedWorker, run_dir: Path) -> None:
    key = add_key(run_dir)
    async with secured(run_dir) as gateway, showing(gateway, key) as (http, channel):
        await agents(channel).ListAgents(agent_pb2.ListAgentsRequest())
        assert worker.requests[-1].namespace == "team-a"
        await http.post("/v1/chat/completions", json=BODY, headers={"x-agent-id": "a"})
        assert worker.requests[-1].key.namespace == "team-a"
        anthropics = {"x-api-key": key}
        async with httpx.AsyncClient(base_url=http.base_url, headers=anthropics) as other:
            assert (await other.get("/v1/models")).status_code == 200
        async with openai.AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key=key) as sdk:
            assert [model.id async for model in sdk.models.list()] == ["demo", "org/large"]


async def test_the_worker_is_never_shown_a_key(worker: ScriptedWorker, run_dir: Path) -> None:
    key = add_key(run_dir)
    async with secured(run_dir) as gateway, showing(gateway, key) as (http, channel):
        metadata = (("authorization", "Basic more"), ("x-api-key", key), ("x-request-id", "r1"))
        await agents(channel).ListAgents(agent_pb2.ListAgentsRequest(), metadata=metadata)
        assert worker.metadata[-1]["x-request-id"] == "r1"
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        assert [event async for event in stub.Generate(inference_pb2.GenerateRequest())]
        await agents(channel).ImportAgent(iter([agent_pb2.ImportAgentRequest(chunk=b"x")]))
        await http.post("/v1/chat/completions", json=BODY, headers={"x-api-key": key})
    assert len(worker.metadata) >= 4
    for shown in worker.metadata:
        assert not {"authorization", "x-api-key"} & shown.keys()
        assert key not in str(shown)


@pytest.mark.parametrize("shown", ["", "am_000000000000_" + "x" * 43])
async def test_without_a_key_nothing_is_told_but_health(worker: ScriptedWorker, run_dir: Path, shown: str) -> None:
    add_key(run_dir)
    async with secured(run_dir) as gateway, showing(gateway, shown) as (http, channel):
        for path in ("/v1/models", "/metrics", "/nope", "/v1/chat/completions"):
            answer = await http.get(path)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert answer.json()["error"]["type"] == "authentication_error"
        for path in ("/healthz", "/readyz"):
            assert (await http.get(path)).status_code == 200
        refused = await failure(agents(channel).ListAgents(agent_pb2.ListAgentsRequest()))
        assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
        rpc = {"grpc_type": "unary", "grpc_service": "agentmem.v1.AgentService", "grpc_method": "ListAgents"}
        value = gateway.metrics.registry.get_sample_value
        # Counted when the handler has ended, of which the caller may hear before.
        await eventually(lambda: value("grpc_server_handled_total", {**rpc, "grpc_code": "UNAUTHENTICATED"}) == 1)
        sent = iter([agent_pb2.ImportAgentRequest(chunk=b"x")] * 3)
        assert (await failure(agents(channel).ImportAgent(sent))).code() is grpc.StatusCode.UNAUTHENTICATED
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
    assert worker.requests == []


async def test_revoked_while_it_runs(worker: ScriptedWorker, run_dir: Path) -> None:
    worker.script = endless
    key, stays = add_key(run_dir), add_key(run_dir)
    async with (
        secured(run_dir) as gateway,
        showing(gateway, key) as (http, channel),
        showing(gateway, stays) as (_, other),
    ):
        request = inference_pb2.GenerateRequest()
        calls = [inference_pb2_grpc.InferenceServiceStub(each).Generate(request) for each in (channel, other)]
        for call in calls:
            await call.read()  # type: ignore[attr-defined]
        async with http.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            revoke(run_dir, key)
            with pytest.raises(httpx.RemoteProtocolError):  # cut off, and not ended as if it were whole
                async for _ in lines:
                    pass
        await eventually(lambda: answers(gateway, "/v1/chat/completions", "401") == 1)
        ended = await failure(calls[0].read())  # type: ignore[attr-defined]
        assert ended.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "revoked" in (ended.details() or "")
        assert (await http.get("/v1/models")).status_code == 401
        refused = await failure(agents(channel).ListAgents(agent_pb2.ListAgentsRequest()))
        assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
        await eventually(lambda: worker.running == 1)
        assert not calls[1].done()
        calls[1].cancel()


async def test_an_unusable_file_lets_nobody_in(worker: ScriptedWorker, run_dir: Path) -> None:
    key = add_key(run_dir)
    async with secured(run_dir) as gateway, showing(gateway, key) as (http, channel):
        (run_dir / "keys.json").write_text("{")
        answer = await http.get("/v1/models")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        refused = await failure(agents(channel).ListAgents(agent_pb2.ListAgentsRequest()))
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
        assert (await http.get("/healthz")).status_code == 200


async def test_models_are_loaded_by_admins_only(worker: ScriptedWorker, run_dir: Path) -> None:
    plain, admin = add_key(run_dir), add_key(run_dir, admin=True)
    async with (
        secured(run_dir) as gateway,
        showing(gateway, plain) as (http, channel),
        showing(gateway, admin) as (admins_http, admins),
    ):
        models: Any = model_pb2_grpc.ModelServiceStub(channel)
        await models.ListModels(model_pb2.ListModelsRequest())
        for call in (
            models.LoadModel(model_pb2.LoadModelRequest()).read(),
            models.UnloadModel(model_pb2.UnloadModelRequest()),
            models.PullModel(model_pb2.PullModelRequest()).read(),
            models.SearchModels(model_pb2.SearchModelsRequest()),
        ):
            refused = await failure(call)
            assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "keys create --admin" in (refused.details() or "")
        can: Any = model_pb2_grpc.ModelServiceStub(admins)
        assert [step.stage async for step in can.LoadModel(model_pb2.LoadModelRequest())] == ["ready"]
        await can.UnloadModel(model_pb2.UnloadModelRequest())
        assert len((await can.SearchModels(model_pb2.SearchModelsRequest())).models) == 1
        asked = len(worker.requests)
        for verb in ("load", "unload", "pull"):
            url = f"/v1/model-registry/demo/{verb}"
            assert (await http.post(url, json={})).status_code == 403
            assert len(worker.requests) == asked
            assert (await admins_http.post(url, json={})).status_code == 200
            asked += 1
        assert (await http.get("/v1/model-registry")).status_code == 200
        assert (await http.get("/v1/hub/models")).status_code == 403


async def test_limits_of_a_key_hold_at_both_doors_together(worker: ScriptedWorker, run_dir: Path) -> None:
    worker.script = endless
    one, few = add_key(run_dir, max_running=1), add_key(run_dir, max_per_minute=3)
    async with secured(run_dir) as gateway:
        async with showing(gateway, one) as (http, channel):
            call: Any = inference_pb2_grpc.InferenceServiceStub(channel).Generate(inference_pb2.GenerateRequest())
            await call.read()
            answer = await http.get("/v1/models")
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            assert answer.json()["error"]["type"] == "rate_limit_error"
            refused = from_rpc(await failure(agents(channel).ListAgents(agent_pb2.ListAgentsRequest())))
            assert isinstance(refused, ResourceExhausted)
            call.cancel()
            await eventually(lambda: worker.running == 0)
            assert (await http.get("/v1/models")).status_code == 200
        async with showing(gateway, few) as (http, channel):
            assert (await http.get("/v1/models")).status_code == 200
            for _ in range(2):
                await agents(channel).ListAgents(agent_pb2.ListAgentsRequest())
            assert 15 <= int((await http.get("/v1/models")).headers["retry-after"]) <= 20
            refused = from_rpc(await failure(agents(channel).ListAgents(agent_pb2.ListAgentsRequest())))
            assert isinstance(refused, ResourceExhausted)
            assert 15 < refused.retry_after <= 20
            assert (await http.get("/healthz")).status_code == 200


async def test_everybody_is_one_caller_without_keys(worker: ScriptedWorker, run_dir: Path) -> None:
    async with running(run_dir, max_per_minute=2) as gateway:
        for key, status in (("", 200), ("one", 200), ("another", 429)):
            async with showing(gateway, key) as (http, _):
                assert (await http.get("/v1/models")).status_code == status


async def test_clear_text_to_the_world_is_warned_of(
    worker: ScriptedWorker, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = add_key(run_dir)
    async with secured(run_dir, http="0.0.0.0:0") as gateway:
        port = gateway.addresses["http"].rpartition(":")[2]
        async with httpx.AsyncClient(headers={"x-api-key": key}) as client:
            assert (await client.get(f"http://127.0.0.1:{port}/v1/models")).status_code == 200
    assert "in clear text" in caplog.text
    caplog.clear()
    async with secured(run_dir):
        pass
    assert "in clear text" not in caplog.text
