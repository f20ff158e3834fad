"""No request of 16 MiB over gRPC costs its server much, or another caller its time, before it is refused.

What others wait is counted in the processor time of the services meanwhile, where that is less than the time on the
clock: other work of the machine is not theirs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import psutil
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentmem.channels import connect
from agentmem.rpcs import arity
from agentmem.v1 import inference_pb2
from tests.peaks import Peaks
from tests.system import hostile
from tests.system.client import Client
from tests.system.hostile import Attack
from tests.system.stack import Stack, running

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux says how much memory was taken"),
]

MIB = 1 << 20
LARGEST = 16 * MIB - 1024
"""With what stands around it no message is larger than the gateway takes."""
PROCESSOR_SECONDS, GROWTH, WAIT_SECONDS = 5.0, 300 * MIB, 1.0
MODEL = "tiny"
SEEDS = [
    ("Generate", "messages.messages, small"),
    ("Prefill", "append.messages.messages, empty"),
    ("CountTokens", "messages.messages.tool_calls_json, empty arrays"),
    ("Generate", "input in turn"),
    ("ProbeAgent", "token_ids.ids, packed"),
    ("SetTurnHints", "hints, small"),
    ("FindAgent", "message_hashes, empty"),
    ("RunWorkflow", "variables, members"),
    ("GetAgent", "no end of a number"),
]
"""Requests that took minutes, gigabytes or the gateway, and their likes in other fields."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tiny: Path) -> AsyncIterator[Stack]:
    async with running(f"{MODEL}={tiny}", "store", "worker", "gateway") as stack:
        yield stack


class Costs:
    """The processor time and memory of services from now on, and the longest wait of another caller."""

    def __init__(self, stack: Stack) -> None:
        self._processes = {name: psutil.Process(process.pid) for name, process in stack.processes.items()}
        self._memory = Peaks({name: process.pid for name, process in stack.processes.items()})
        self._spent = self._times()
        self.waited = 0.0

    def _times(self) -> dict[str, float]:
        times = {name: process.cpu_times() for name, process in self._processes.items()}
        return {name: each.user + each.system for name, each in times.items()}

    @property
    def processor_seconds(self) -> float:
        return sum(self._times().values()) - sum(self._spent.values())

    @property
    def growth(self) -> dict[str, int]:
        return self._memory.most()

    async def watch(self, channel: grpc.aio.Channel, client: Client) -> None:
        """Ask again and again what the gateway itself, and through it the worker, can answer at once."""
        gateway, worker = health_pb2_grpc.HealthStub(channel).Check, client.inference.Abort
        asked = (gateway, health_pb2.HealthCheckRequest()), (worker, inference_pb2.AbortRequest(request_id="nobody"))
        while True:
            for ask, request in asked:
                began, spent = time.monotonic(), self._times()
                await ask(request)
                worked = max(now - spent[name] for name, now in self._times().items())
                self.waited = max(self.waited, min(time.monotonic() - began, worked))
            await asyncio.sleep(0.02)


async def send(channel: grpc.aio.Channel, attack: Attack, size: int) -> grpc.StatusCode:
    method, messages = attack.method, attack.messages(size)
    path = f"/{method.containing_service.full_name}/{method.name}"
    kind = arity(method.client_streaming, method.server_streaming)
    call = getattr(channel, kind)(path)(iter(messages) if method.client_streaming else messages[0], timeout=300)
    try:
        if method.server_streaming:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@asynccontextmanager
async def watched(stack: Stack) -> AsyncIterator[Costs]:
    """Yield the costs of the services during the block, while another caller asks."""
    client, costs = await stack.client("gateway"), Costs(stack)
    async with connect(stack.grpc, options={"grpc.use_local_subchannel_pool": 1}) as channel:
        watching = asyncio.create_task(costs.watch(channel, client))
        try:
            yield costs
            assert not watching.done(), watching.exception()
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


async def attacked(stack: Stack, attack: Attack, size: int) -> grpc.StatusCode:
    async with connect(stack.grpc) as channel:
        return await send(channel, attack, size)


async def check(stack: Stack, attack: Attack, size: int) -> grpc.StatusCode:
    async with watched(stack) as costs:
        status = await attacked(stack, attack, size)
    said = (str(attack), status, costs.processor_seconds, costs.growth, costs.waited)
    assert status is not grpc.StatusCode.INTERNAL, said
    assert costs.processor_seconds < PROCESSOR_SECONDS, said
    assert max(costs.growth.values()) < GROWTH, said
    assert costs.waited < WAIT_SECONDS, said
    return status


@pytest.mark.parametrize("seed", SEEDS, ids=": ".join)
async def test_what_was_costly_once(stack: Stack, seed: tuple[str, str]) -> None:
    assert await check(stack, hostile.attack(MODEL, *seed), LARGEST) is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.slow
@pytest.mark.parametrize("method", [method.name for service in hostile.SERVICES for method in service.methods])
async def test_nothing_is_costly(stack: Stack, method: str) -> None:
    """All that the contract's descriptors make of an RPC's request."""
    for attack in hostile.attacks(MODEL):
        if attack.method.name == method:
            await check(stack, attack, LARGEST)
