import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from agentmem import errors
from agentmem.distribution import version
from agentmem.process.grpc_metrics import ProcessMetrics
from agentmem.process.server import GrpcServer
from cache_service.store import Store
from gateway.metrics import GatewayMetrics
from inference_service.metrics import WorkerMetrics
from tests.agentmem.process import four_arities
from tests.agentmem.process.four_arities import ARITIES, NAME, UNSERVED, WRITES, Service, forever, raising

TYPES = dict(zip(ARITIES, ("unary", "server_stream", "client_stream", "bidi_stream"), strict=True))
SENT = 3


def _type(name: str) -> str:
    return "unary" if name == UNSERVED else TYPES.get(name, "server_stream")


class Client(four_arities.Client):
    def __init__(self, client: four_arities.Client, registry: CollectorRegistry) -> None:
        super().__init__(client.channel, client.server)
        self._registry = registry

    def value(self, metric: str, name: str, **more: str) -> float | None:
        labels = {"grpc_type": _type(name), "grpc_service": NAME, "grpc_method": name, **more}
        return self._registry.get_sample_value(f"grpc_server_{metric}", labels)

    def codes(self, name: str) -> dict[str, float]:
        """How often the method ended with each status, as far as it did."""
        counts = {code.name: self.value("handled_total", name, grpc_code=code.name) or 0 for code in grpc.StatusCode}
        return {code: count for code, count in counts.items() if count}

    async def ended(self, name: str) -> dict[str, float]:
        """`codes`, when all that began has ended: the server hears of a caller that has gone a moment later."""
        async with asyncio.timeout(30):
            while self.value("handling_seconds_count", name) != self.value("started_total", name):
                await asyncio.sleep(0.005)
        return self.codes(name)

    def labels(self) -> set[tuple[str, str]]:
        return {
            (sample.labels["grpc_service"], sample.labels["grpc_method"])
            for family in self._registry.collect()
            for sample in family.samples
            if family.name.startswith("grpc_server_")
        }


@pytest.fixture
def service() -> Service:
    made = Service()
    made.good = SENT - 1
    return made


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    async for client in serving(service):
        yield client


async def serving(service: Service, authenticate: Any = None) -> AsyncIterator[Client]:
    registry = CollectorRegistry()
    metrics = ProcessMetrics(registry, "test")
    async with four_arities.serving(service, edge=True, authenticate=authenticate, metrics=metrics) as client:
        yield Client(client, registry)


@pytest.mark.parametrize("name", [*TYPES, WRITES])
async def test_what_goes_well_is_counted_with_its_messages(client: Client, name: str) -> None:
    assert client.value("handled_total", name, grpc_code="OK") == 0, "the series is there before the first call"
    assert client.value("handled_total", name, grpc_code="INTERNAL") == 0
    for _ in range(2):
        assert await client.code(name) is grpc.StatusCode.OK
    assert await client.ended(name) == {"OK": 2}
    assert client.value("started_total", name) == 2
    assert client.value("msg_received_total", name) == (4 if name.startswith("stream") else 2)
    assert client.value("msg_sent_total", name) == (2 if name.endswith("unary") else 2 * SENT)
    assert client.value("handling_seconds_count", name) == 2
    assert client.value("handling_seconds_sum", name) != 0


async def aborting(context: Any) -> None:
    await context.abort(grpc.StatusCode.OUT_OF_RANGE, "beyond")


async def telling(context: Any) -> None:
    context.set_code(grpc.StatusCode.DATA_LOSS)


@pytest.mark.parametrize("name", [*TYPES, WRITES])
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (raising(errors.NotFound("agent", "x")), grpc.StatusCode.NOT_FOUND),
        (raising(errors.DeadlineExceeded("a peer took too long")), grpc.StatusCode.DEADLINE_EXCEEDED),
        (raising(RuntimeError("a bug")), grpc.StatusCode.INTERNAL),
        (aborting, grpc.StatusCode.OUT_OF_RANGE),
        (telling, grpc.StatusCode.DATA_LOSS),
    ],
    ids=["error", "deadline of a peer", "bug", "abort", "set_code"],
)
async def test_a_failure_counts_with_the_callers_status(
    client: Client, service: Service, name: str, fault: Any, code: grpc.StatusCode
) -> None:
    service.fault = fault
    assert await client.code(name) is code
    assert await client.ended(name) == {code.name: 1}


@pytest.mark.parametrize("name", TYPES)
async def test_an_undecodable_message_counts_as_one(client: Client, service: Service, name: str) -> None:
    assert await client.code(name, b"\xff\xff") is grpc.StatusCode.INVALID_ARGUMENT
    assert await client.ended(name) == {"INVALID_ARGUMENT": 1}
    assert client.value("msg_received_total", name) == 1
    assert not service.entered.is_set()


@pytest.mark.parametrize("name", [*TYPES, WRITES])
@pytest.mark.parametrize("timeout", [None, 600.0])
async def test_a_caller_that_leaves_has_cancelled(
    client: Client, service: Service, name: str, timeout: float | None
) -> None:
    service.fault = forever
    call = client.start(name, timeout=timeout)
    await service.entered.wait()
    call.cancel()
    assert await client.ended(name) == {"CANCELLED": 1}


@pytest.mark.parametrize("name", [*TYPES, WRITES])
async def test_a_deadline_that_passes_is_told_from_it(client: Client, service: Service, name: str) -> None:
    service.fault = forever
    assert await client.code(name, timeout=1.2345) is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await client.ended(name) == {"DEADLINE_EXCEEDED": 1}


def refuse(method: str, _: object) -> Any:
    raise errors.Unauthenticated("who?")


@pytest.mark.parametrize("name", TYPES)
async def test_a_refusal_is_counted(service: Service, name: str) -> None:
    async for client in serving(service, authenticate=refuse):
        assert await client.code(name) is grpc.StatusCode.UNAUTHENTICATED
        assert await client.ended(name) == {"UNAUTHENTICATED": 1}
        assert client.value("msg_received_total", name) == (2 if name.startswith("stream") else 1)
        assert client.value("msg_sent_total", name) == 0


async def test_labels_are_those_of_the_contract_whatever_is_called(client: Client) -> None:
    before = client.labels()
    assert before == {(NAME, method) for method in (*TYPES, WRITES, UNSERVED)}
    for path in (f"/{NAME}/nonsense", "/nobody.Service/Method", f"/{NAME}/{UNSERVED}"):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.channel.unary_unary(path)(b"")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await health_pb2_grpc.HealthStub(client.channel).Check(health_pb2.HealthCheckRequest())
    assert client.labels() == before
    assert not any(client.codes(method) for _, method in before)


async def test_ready_follows_what_the_server_says_of_itself() -> None:
    registry = CollectorRegistry()
    server = GrpcServer("127.0.0.1:0", [], metrics=ProcessMetrics(registry, "worker", ["store"]))
    ready = [registry.get_sample_value("agentmem_ready")]
    await server.start()
    for serving in (True, False, True):
        await server.set_serving(serving)
        ready.append(registry.get_sample_value("agentmem_ready"))
    await server.stop(0)
    assert [*ready, registry.get_sample_value("agentmem_ready")] == [0, 1, 0, 1, 0]


def test_what_runs_and_whom_it_hears() -> None:
    registry = CollectorRegistry()
    metrics = ProcessMetrics(registry, "gateway", ["worker", "store"])
    labels = {"service": "gateway", "version": version()}
    assert registry.get_sample_value("agentmem_build_info", labels) == 1
    metrics.answered("store", True)
    up = [registry.get_sample_value("agentmem_peer_up", {"peer": peer}) for peer in ("worker", "store")]
    assert up == [0, 1]
    metrics.answered("store", False)
    assert registry.get_sample_value("agentmem_peer_up", {"peer": "store"}) == 0
    with pytest.raises(KeyError):
        metrics.answered("nobody", True)


def test_a_process_without_peers_has_no_such_metric() -> None:
    registry = CollectorRegistry()
    ProcessMetrics(registry, "store")
    assert "agentmem_peer_up" not in {family.name for family in registry.collect()}


def test_pages_have_no_series_of_when_series_were_made() -> None:
    registry = CollectorRegistry()
    Counter("turns", "Turns.", registry=registry).inc()
    assert "created" not in generate_latest(registry).decode()


def registries(data: Path) -> dict[str, CollectorRegistry]:
    store, worker = CollectorRegistry(), CollectorRegistry()
    WorkerMetrics(worker)
    ProcessMetrics(worker, "worker", ["store"])
    Store(data, store).close()
    return {"gateway": GatewayMetrics().registry, "worker": worker, "store": store}


def test_what_two_processes_count_differs_by_a_label(tmp_path: Path) -> None:
    """Otherwise a sum over processes counts a request twice. What each says of itself is by process."""
    labels: dict[str, dict[str, tuple[str, ...]]] = {}
    for process, registry in registries(tmp_path / "d").items():
        for collector in registry._collector_to_names:  # prometheus_client has no public list of labels
            if hasattr(collector, "_labelnames"):
                labels.setdefault(collector._name, {})[process] = collector._labelnames
    shared = {name: by_process for name, by_process in labels.items() if len(by_process) > 1}
    tiers = {"agentmem_cache_evictions", "agentmem_cache_agents"}
    itself = {"agentmem_build_info", "agentmem_ready", "agentmem_peer_up"}
    assert {name for name in shared if not name.startswith("grpc_server_")} - itself <= tiers, shared
    for name, by_process in shared.items():
        # Only the worker tells models apart, and only it has the tier "hot".
        assert len({frozenset(set(labels) - {"model_id"}) for labels in by_process.values()}) == 1, name


def test_all_histograms_have_the_same_buckets(tmp_path: Path) -> None:
    buckets = [
        collector._upper_bounds
        for registry in registries(tmp_path / "d").values()
        for collector in registry._collector_to_names
        if isinstance(collector, Histogram)
    ]
    assert len(buckets) > 5
    assert all(one == buckets[0] for one in buckets)
