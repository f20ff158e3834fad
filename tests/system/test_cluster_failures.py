"""Callers of a cluster whose node dies in a turn, hangs, or leaves."""

from __future__ import annotations

import signal
from typing import Any

import grpc
import pytest

from agentmem import errors
from agentmem.v1 import types_pb2
from tests.system.client import Client, chat
from tests.system.stack import Stack
from tests.system.test_cluster import Cluster

SHORT: dict[str, Any] = {"max_tokens": 2}
LONG: dict[str, Any] = {"max_tokens": 400, "sampling": types_pb2.Sampling(ignore_eos=True), "request_id": "r1"}


async def begun(two: Cluster) -> tuple[Stack, Stack, Client]:
    await (await two.machines["a"].gateway()).say("ada", "The colour of the boat is green.", **SHORT)
    home = await two.holder("ada")
    other = two.other(home)
    return two.machines[home].stack, other.stack, await other.gateway()


async def turns(stack: Stack) -> float:
    return await stack.metric("worker", "agentmem_e2e_request_latency_seconds_count")


@pytest.mark.slow
async def test_a_turn_in_which_its_node_died_runs_elsewhere_when_it_is_sent_again(two: Cluster) -> None:
    home, _, client = await begun(two)
    message = types_pb2.Append(messages=chat(("user", "Tell me more.")))
    events = aiter(client.inference.Generate(client.request("ada", append=message, **LONG)))
    assert (await anext(events)).HasField("started")
    home.kill("gateway", "worker", "store")
    with pytest.raises(grpc.aio.AioRpcError) as broken:
        async for _ in events:
            pass
    failure = errors.from_rpc(broken.value)
    assert isinstance(failure, errors.Unavailable)
    assert failure.retry_after > 0
    again = await client.turn("ada", append=message, **LONG)
    assert (again.finished.version.version, again.finished.replayed, again.finished.durable) == (2, False, True)
    assert (await client.turn("ada", append=message, **LONG)).finished.replayed


@pytest.mark.slow
async def test_a_gateway_that_hangs_is_passed_over(two: Cluster) -> None:
    home, other, client = await begun(two)
    await client.say("ada", "And the oars?", **SHORT)  # over a connection that stays
    assert await turns(home) == 2
    hung = home.processes["gateway"]
    hung.send_signal(signal.SIGSTOP)
    try:
        turn = await client.say("ada", "And the sail?", **SHORT)
    finally:
        hung.send_signal(signal.SIGCONT)
    assert turn.finished.version.version == 3
    assert await turns(other) == 1
