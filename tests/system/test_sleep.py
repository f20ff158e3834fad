"""A machine that sleeps for a while: all processes of `agentmem up` are stopped, and go on.

SIGSTOP is harder than a sleep, in which the clocks of timers stand still: here all of them are late at once. Leases and
times that count a sleep are tested with clocks that jump: tests/gateway/cluster/test_membership.py,
tests/cache_service/ledger.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

import grpc
import httpx
import psutil
import pytest

from agentmem import AsyncClient
from agentmem.errors import Unavailable, from_rpc
from agentmem.v1 import types_pb2
from tests.system.client import Client, Turn, append
from tests.system.stack import Stack
from tests.system.supervised import MODULES, Supervised, supervised

LONG: dict[str, Any] = {"max_tokens": 300, "sampling": types_pb2.Sampling(ignore_eos=True)}


def all_of(stack: Supervised) -> Sequence[psutil.Process]:
    """The supervisor, and then its services."""
    return [psutil.Process(stack.processes["up"].pid), *map(stack.service, MODULES)]


async def until_told(client: Client, agent: str, asleep: asyncio.Event) -> Turn:
    """A turn, sent again under its request_id where it failed in words."""
    while True:
        try:
            return await client.say(agent, "Go on.", request_id=f"{agent}-2", **LONG)
        except grpc.aio.AioRpcError as error:
            assert asleep.is_set() and isinstance(from_rpc(error), Unavailable), error  # noqa: PT017
            await asyncio.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [6, 35], ids=["short", "longer than a connection is waited for"])
async def test_turns_under_way_end_right_after_a_sleep(seconds: float, demo: Stack) -> None:
    """Each client gets the answer of a machine that was awake, by itself or after a refusal in words; once."""
    async with supervised() as stack:
        client, control = await stack.client("gateway"), await demo.client("gateway")
        for agent in ("a", "b", "c"):
            for each in (client, control):
                await each.say(agent, "The boat is green.", request_id=f"{agent}-1", max_tokens=12)
        processes, asleep = all_of(stack), asyncio.Event()
        async with AsyncClient(stack.grpc) as own, httpx.AsyncClient(base_url=stack.url, timeout=120) as http:
            body = {"model": "demo", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 300}
            posted = http.post(
                "/v1/chat/completions",
                json={**body, "logit_bias": {"2": -100}, "stream": True},
                headers={"X-Agent-ID": "d"},
            )
            telling = [asyncio.create_task(until_told(client, agent, asleep)) for agent in ("a", "b")]
            asking = asyncio.create_task(own.agent("c").ask("Go on.", max_tokens=300, ignore_eos=True))
            posting = asyncio.create_task(posted)
            await stack.until_running(4)
            asleep.set()
            for process in processes:
                os.kill(process.pid, signal.SIGSTOP)
            assert not any(task.done() for task in (*telling, asking, posting)), "they were under way"
            await asyncio.sleep(seconds)
            for process in reversed(processes):
                os.kill(process.pid, signal.SIGCONT)
            told, answer, streamed = await asyncio.gather(*telling), await asking, await posting
        assert [process.pid for process in all_of(stack)] == [process.pid for process in processes], (
            "none was restarted"
        )
        for agent, text in zip("abc", (*(turn.text for turn in told), answer.text), strict=True):
            assert text == (await control.say(agent, "Go on.", request_id=f"{agent}-2", **LONG)).text
            assert (await stack.ledger(agent)).token_ids == (await demo.ledger(agent)).token_ids
        assert streamed.status_code == 200 and streamed.text.count("data: [DONE]") == 1
        await stack.until_ready()
        again = await client.turn("a", append=append("And?"), max_tokens=4)
        assert again.cached.get("hot", 0) > 300
