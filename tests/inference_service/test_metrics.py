"""Every metric of a whole worker moves, in this process, over a real store and a tiny model."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from agentmem.channels import connect
from agentmem.process.server import GrpcServer
from agentmem.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    types_pb2,
)
from cache_service.store import Store
from inference_service.metrics import WorkerMetrics
from inference_service.settings import WorkerSettings
from inference_service.worker import Worker
from tests.tiny_models import write_llama

REPOSITORY = Path(__file__).parents[2]
SUFFIX = "_(total|bucket|sum|count)$"
LENGTH = 300
"""Tokens of a prompt: a full block and a tail."""
SAID = 8
CONTEXT = 1024


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    path = Path(tempfile.mkdtemp(dir="/tmp", prefix="am"))
    yield path
    shutil.rmtree(path)


@dataclass
class Running:
    registry: CollectorRegistry
    store_registry: CollectorRegistry
    server: GrpcServer
    """The store's."""
    inference: Any
    agents: Any
    models: Any

    def __call__(self, name: str, **labels: str) -> float | None:
        """A sample of the worker's, of the model "m" unless `labels` say which."""
        return self.registry.get_sample_value(f"agentmem_{name}", {"model_id": "m", **labels})

    def plain(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"agentmem_{name}", labels)

    def key(self, agent: str, model: str = "m") -> types_pb2.AgentKey:
        return types_pb2.AgentKey(namespace="n", agent_id=agent, model_id=model)

    def start(self, agent: str, length: int = LENGTH, said: int = SAID, model: str = "m", **more: Any) -> Any:
        """A turn whose prompt is a number of tokens, each prompt the beginning of longer ones of the same agent."""
        ids = [3 + (sum(agent.encode()) + position * position) % 240 for position in range(length)]
        return self.inference.Generate(
            inference_pb2.GenerateRequest(
                key=self.key(agent, model),
                token_ids=types_pb2.TokenIds(ids=ids),
                max_tokens=said,
                sampling=types_pb2.Sampling(ignore_eos=True),
                **more,
            )
        )

    async def turn(self, agent: str, *arguments: Any, **more: Any) -> inference_pb2.Finished:
        events = [event async for event in self.start(agent, *arguments, **more)]
        return events[-1].finished

    async def refused(self, agent: str, *arguments: Any, **more: Any) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await self.turn(agent, *arguments, **more)
        return refused.value.code()

    async def until(self, name: str, value: float, **labels: str) -> None:
        async with asyncio.timeout(60):
            while self(name, **labels) != value:
                await asyncio.sleep(0.005)

    async def evict(self, agent: str, tier: types_pb2.Tier.ValueType = types_pb2.TIER_HOT) -> None:
        await self.agents.EvictAgent(agent_pb2.EvictAgentRequest(key=self.key(agent), tier=tier))


@asynccontextmanager
async def running(place: Path, **settings: Any) -> AsyncIterator[Running]:
    kept, registry = CollectorRegistry(), CollectorRegistry()
    store = await asyncio.to_thread(Store, place / "data", kept)
    server = GrpcServer(f"unix:{place}/store.sock", store.services, metrics=store.process_metrics)
    await server.start()
    await server.set_serving(True)
    models = [
        f"{name}={await asyncio.to_thread(partial(write_llama, place / name, context=CONTEXT))}"
        for name in ("m", "other")
    ]
    worker = Worker(
        WorkerSettings(
            data=place / "data", run_dir=place, model=models, quality_check=False, min_residency=0, grace=0, **settings
        ),
        registry,
    )
    try:
        await worker.start()
        async with connect(f"unix:{place}/worker.sock") as channel:
            yield Running(
                registry,
                kept,
                server,
                inference_pb2_grpc.InferenceServiceStub(channel),
                agent_pb2_grpc.AgentServiceStub(channel),
                model_pb2_grpc.ModelServiceStub(channel),
            )
    finally:
        await worker.stop()
        await server.stop(0)
        await asyncio.to_thread(store.close)


@pytest.mark.slow
async def test_every_number_is_moved_by_what_it_counts(place: Path) -> None:
    async with running(place, max_requests=2, pool_bytes=1 << 20, speculation=True) as m:
        await _a_new_prompt(m)
        await _reuse(m)
        await _what_fails(m)
        await _a_replay(m)
        await _damage(m, place)
        await _what_repeats(m)
        await _a_crowd(m)
        await _past_the_context(m)
        await _another_model(m)
        elsewhere = {f"agentmem_cache_fetch_{what}" for what in ("bytes", "seconds", "choices")}
        # A disk that fails, and KV that is not on this machine: see test_persisting and test_fetching_or_computing.
        never = {"agentmem_cache_store_failures", *elsewhere}
        still = {
            family.name
            for family in m.registry.collect()
            if family.type in ("counter", "histogram") and family.name.startswith("agentmem_")
            if not any(sample.value for sample in family.samples if not sample.name.endswith("_created"))
        }
        assert still == never, "what is never moved is of no use"


async def _a_new_prompt(m: Running) -> None:
    assert m("requests_finished_total", reason="length") == 0, "the series is there before the first event"
    assert m.plain("requests_limit") == 2
    await m.turn("a")
    await m.until("cache_store_seconds_count", 1)
    assert m("requests_finished_total", reason="length") == 1
    assert m("prompt_tokens_total") == m("prefix_cache_queries_total") == LENGTH
    assert m("cache_lookups_total", match="new", tier="none", reason="absent") == 1
    assert m("generation_tokens_total") == SAID
    assert m("inter_token_latency_seconds_count") == SAID - 1
    for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time"):
        assert m(f"{name}_seconds_count") == 1, name
    assert m("time_to_first_token_seconds_count", tier="none") == 1
    gaps, first = m("inter_token_latency_seconds_sum") or 0, m("time_to_first_token_seconds_sum", tier="none") or 0
    assert gaps + first <= (m("e2e_request_latency_seconds_sum") or 0), "gaps are those of the engine, none twice"
    assert (m("cache_store_bytes_total") or 0) > 0
    assert (m.plain("engine_steps_total", kind="prefill") or 0) >= 1
    assert m.plain("engine_steps_total", kind="decode") == SAID + 1, "the last one is KV of the last token"
    assert m.plain("engine_alive") == 1
    assert (m.plain("mlx_memory_bytes", kind="active") or 0) > 0
    assert m("num_requests_running") == m("num_requests_waiting") == 0
    assert m("cache_agents", tier="hot") == 1
    assert (m("pool_blocks", state="used") or 0) >= 2 and (m("pool_blocks", state="free") or 0) > 0
    assert 0 < (m("kv_cache_usage_ratio") or 0) < 1


async def _reuse(m: Running) -> None:
    """From the pool, from the disk, and ahead of the turn."""
    await m.turn("a", LENGTH + SAID)
    hot = m("prefix_cache_hits_total", tier="hot") or 0
    assert hot >= LENGTH - 1 and m("prompt_tokens_cached_total", tier="hot") == hot
    assert m("time_to_first_token_seconds_count", tier="hot") == 1
    await m.until("cache_store_seconds_count", 2)
    await m.evict("a")
    assert m("cache_agents", tier="hot") == 0
    assert m("cache_evictions_total", tier="hot", reason="request") == 1
    await m.turn("a", LENGTH + 2 * SAID)
    assert (m("prefix_cache_hits_total", tier="warm") or 0) > 0 and m("cache_load_seconds_count") == 1
    bytes_read = m("cache_load_bytes_total") or 0
    assert bytes_read > 0
    await m.until("cache_store_seconds_count", 3)
    await m.evict("a")
    await m.agents.PrefetchAgent(agent_pb2.PrefetchAgentRequest(key=m.key("a")))
    assert m("cache_load_seconds_count") == 2 and (m("cache_load_bytes_total") or 0) > bytes_read


async def _what_fails(m: Running) -> None:
    """It is counted once, by its code, and in no latency of what went well."""
    went_well = ("e2e_request_latency", "request_prefill_time", "request_queue_time")
    before = {name: m(f"{name}_seconds_count") for name in went_well}
    assert await m.refused("b", 5000) is grpc.StatusCode.FAILED_PRECONDITION, "beyond the context"
    assert await m.refused("b", if_version=7) is grpc.StatusCode.ABORTED
    assert m("requests_finished_total", reason="failed_precondition") == 1
    assert m("requests_finished_total", reason="aborted") == 1
    assert await m.refused("b", model="nobody") is grpc.StatusCode.NOT_FOUND
    assert before == {name: m(f"{name}_seconds_count") for name in went_well}, "it was never taken up"
    assert m("num_requests_waiting") == 0

    tokens, gaps = m("generation_tokens_total") or 0, m("inter_token_latency_seconds_count") or 0
    calls = [m.start(agent, LENGTH, 900) for agent in ("b", "c")]
    for call in calls:
        events = aiter(call)
        while not (await anext(events)).delta.token_ids:
            pass
    assert m("num_requests_running") == 2 and (m("batch_size") or 0) >= 1
    assert (m("generation_tokens_total") or 0) > tokens, "tokens are counted as they come"
    assert await m.refused("d") is grpc.StatusCode.RESOURCE_EXHAUSTED, "--max-requests"
    assert m("requests_finished_total", reason="resource_exhausted") == 1
    for call in calls:
        call.cancel()
    await m.until("requests_finished_total", 2, reason="cancelled")
    assert m("num_requests_running") == 0
    assert (m("inter_token_latency_seconds_count") or 0) > gaps, "its gaps were gaps"
    assert m("e2e_request_latency_seconds_count") == before["e2e_request_latency"]


async def _a_replay(m: Running) -> None:
    await m.turn("r", 40, request_id="once")
    names = ("generation_tokens_total", "inter_token_latency_seconds_count", "e2e_request_latency_seconds_count")
    before = [m(name) for name in names]
    assert (await m.turn("r", 40, request_id="once")).replayed
    assert m("requests_finished_total", reason="replayed") == 1
    assert [m(name) for name in names] == before, "nothing was computed"
    assert m("num_requests_waiting") == 0


async def _damage(m: Running, place: Path) -> None:
    await m.evict("a")
    for file in (place / "data" / "blocks").rglob("*.safetensors"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    await m.turn("a", LENGTH + 3 * SAID)
    damaged = m("cache_load_failures_total", reason="digest") or 0
    assert damaged >= 1
    assert m.store_registry.get_sample_value("agentmem_cache_quarantined_total", {"reason": "digest"}) == damaged
    assert m("cache_lookups_total", match="partial", tier="none", reason="corrupt") == 1


async def _a_crowd(m: Running) -> None:
    for number in range(12):
        await m.turn(f"crowd{number}", LENGTH + number)
        # It waits for the turn's agent, whose KV is kept after the turn's end.
        await m.agents.PrefetchAgent(agent_pb2.PrefetchAgentRequest(key=m.key(f"crowd{number}")))
        if m("cache_evictions_total", tier="hot", reason="capacity"):
            return
    pytest.fail("the pool holds them all")


async def _what_repeats(m: Running) -> None:
    """One token, which is made the likeliest by far."""
    said, before = 40, m.plain("engine_steps_total", kind="decode") or 0
    request = inference_pb2.GenerateRequest(
        key=m.key("r"),
        token_ids=types_pb2.TokenIds(ids=range(3, 30)),
        max_tokens=said,
        sampling=types_pb2.Sampling(ignore_eos=True, logit_bias={7: 100}),
    )
    async for _ in m.inference.Generate(request):
        pass
    drafted, accepted = (m(f"speculation_{kind}_tokens_total") or 0 for kind in ("drafted", "accepted"))
    assert 0 < accepted <= drafted
    assert (m.plain("engine_steps_total", kind="decode") or 0) - before <= said
    await m.evict("r")  # which waits until all of the turn is kept


async def _past_the_context(m: Running) -> None:
    await m.turn("t", CONTEXT - 100)
    request = inference_pb2.GenerateRequest(
        key=m.key("t"), append=types_pb2.Append(text="The colour of the boat is green. " * 20), max_tokens=SAID
    )
    async for _ in m.inference.Generate(request):
        pass
    assert m("context_trims_total", policy="trim") == 1
    assert not m("context_trims_total", policy="summarize")
    await m.evict("t")  # which waits until all of the turn is kept


async def _another_model(m: Running) -> None:
    hot, finished = m("cache_agents", tier="hot") or 0, m("requests_finished_total", reason="length")
    assert hot > 0 and m("model_info", kv_bits="4") == 1
    async for _ in m.models.LoadModel(model_pb2.LoadModelRequest(model_id="other")):
        pass
    for name, labels in (
        ("model_info", {"kv_bits": "4"}),
        ("batch_size", {}),
        ("kv_cache_usage_ratio", {}),
        ("cache_agents", {"tier": "hot"}),
        ("pool_blocks", {"state": "free"}),
        ("pool_blocks", {"state": "used"}),
    ):
        assert m(name, **labels) is None, f"{name} of a model that is gone"
        assert m(name, **{**labels, "model_id": "other"}) is not None, name
    assert m("cache_evictions_total", tier="hot", reason="unload") == hot
    assert m("model_unloads_total", reason="swap") == 1
    assert m("model_loads_total", result="loaded", model_id="other") == 1
    assert m("requests_finished_total", reason="length") == finished, "counters stay"
    assert m.plain("model_load_seconds_count") == 2


async def test_a_worker_whose_store_comes_and_goes_and_whose_operator_wants_namespaces(place: Path) -> None:
    """One worker for both, because each start takes seconds."""
    async with running(place, namespace_label=True) as m:
        await _namespaces(m)
        for serving in (1, 0, 1):
            await m.server.set_serving(bool(serving))
            async with asyncio.timeout(60):
                while not m.plain("ready") == m.plain("peer_up", peer="store") == serving:
                    await asyncio.sleep(0.01)


async def _namespaces(m: Running) -> None:
    await m.turn("a", 40)
    for name in ("prompt_tokens_total", "generation_tokens_total", "e2e_request_latency_seconds_count"):
        assert m(name, namespace="n"), name
        assert m(name) is None, name
    assert m("requests_finished_total", namespace="n", reason="length") == 1
    assert m("cache_lookups_total", namespace="n", match="new", tier="none", reason="absent") == 1
    assert m("num_requests_running") == 0, "gauges are by model"


def test_what_rules_take_rates_of_begins_at_zero() -> None:
    registry = CollectorRegistry()
    WorkerMetrics(registry, ["m"])
    found = {sample.name for family in registry.collect() for sample in family.samples}
    names = {family.name for family in registry.collect() if family.type in ("counter", "histogram")}
    rules = "".join(path.read_text() for path in (REPOSITORY / "deploy" / "prometheus" / "rules").glob("*.yml"))
    rated = {name for name in re.findall(r"rate\(\s*(agentmem_\w+)", rules) if re.sub(SUFFIX, "", name) in names}
    assert len(rated) > 8 and rated <= found
