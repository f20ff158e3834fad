"""The client of the contract package doubles no turn when its network is cut, at any point of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from agentmem import Answer, AsyncAgent, AsyncClient, errors
from agentmem.v1.workflow_pb2 import WORKFLOW_STATE_SUCCEEDED, AgentDelta, AgentSpoke, WorkflowFinished
from tests.system.proxies import CuttingProxy
from tests.system.stack import Stack

TURN = {"max_tokens": 48, "ignore_eos": True}
ENDS = (260, 220, 180, 140, 100, 60, 30, 1)
"""Bytes before the end of an answer: its last event, and what gRPC says after it."""
Turn = Callable[[AsyncAgent], Awaitable[Answer]]


@asynccontextmanager
async def behind_a_proxy(stack: Stack) -> AsyncIterator[tuple[CuttingProxy, AsyncClient, list[str]]]:
    """A way to the gateway, a client that has gone it, and the outages that the client tells of."""
    proxy, outages = CuttingProxy(("127.0.0.1", stack.ports["grpc"])), list[str]()
    async with AsyncClient(f"127.0.0.1:{proxy.port}", on_outage=outages.append) as client:
        await client.default_model()
        yield proxy, client, outages
    proxy.close()


async def told(agent: AsyncAgent) -> Answer:
    return await agent.tell("The boat is green. " * 20)


async def asked(agent: AsyncAgent) -> Answer:
    return await agent.ask("Where is the boat?", **TURN)


async def streamed(agent: AsyncAgent) -> Answer:
    stream = agent.stream("Where is the boat?", **TURN)
    assert "".join([piece async for piece in stream]) == stream.answer.text
    return stream.answer


def points(size: int) -> Iterator[int]:
    yield from (0, 1, 20)
    yield from (size * part // 6 for part in range(1, 6))
    yield from (size - end for end in ENDS if end < size - 20)


@pytest.mark.slow
@pytest.mark.parametrize("turn", [told, asked, streamed])
async def test_an_answer_that_is_cut_anywhere_is_one_turn(stack: Stack, turn: Turn) -> None:
    await stack.renew("gateway")
    async with behind_a_proxy(stack) as (proxy, client, _):
        before = proxy.answered
        expected = await turn(client.agent("whole"))
        size = proxy.answered - before
        messages = await client.agent("whole").messages()
    ledger = (await stack.ledger("whole")).token_ids
    replayed, cut = set[int](), set[int]()
    few = asyncio.Semaphore(4)  # most of each is the wait of gRPC before it connects again

    async def cut_at(at: int) -> None:
        async with few, behind_a_proxy(stack) as (proxy, client, outages):
            agent = client.agent(f"cut-{at}")
            proxy.cut_answer_after(at)
            answer = await turn(agent)
            assert answer.text == expected.text, at
            assert (await agent.info()).turns == 1, at
            assert await agent.messages() == messages, at
            assert (await stack.ledger(agent.name)).token_ids == ledger, at
            cut.update({at} if outages else ())
            replayed.update({at} if answer.replayed else ())

    await asyncio.gather(*map(cut_at, dict.fromkeys(points(size))))
    # The first bytes may be frames of HTTP/2 that belong to what was asked before: then the turn meets no outage.
    assert {size * part // 6 for part in range(1, 5)} <= cut, size
    assert {0, 1, 20} & cut, size
    # A busy machine sends a text in more pieces, so that answers beside others end later than the one alone.
    for later in range(0, 5 * ENDS[0], ENDS[0]):
        if any(at >= size - ENDS[0] for at in replayed):
            return
        await asyncio.gather(*(cut_at(size + later + ENDS[0] - end) for end in ENDS[1:]))
    pytest.fail("none was cut between its commit and its last event")


async def test_a_file_of_an_agent_through_cuts(stack: Stack, tmp_path: object) -> None:
    await stack.renew("gateway")
    async with behind_a_proxy(stack) as (proxy, client, outages):
        marco = client.agent("marco")
        await marco.ask("The key is red. " * 40, **TURN)
        before = proxy.answered
        size = await marco.export(f"{tmp_path}/whole")
        assert proxy.answered - before > size
        proxy.cut_answer_after(size // 2)
        assert await marco.export(f"{tmp_path}/cut") == size
        assert outages
        with open(f"{tmp_path}/whole", "rb") as whole, open(f"{tmp_path}/cut", "rb") as cut:  # noqa: ASYNC230
            assert whole.read() == cut.read()
        proxy.cut_answer_after(0)
        with suppress(errors.AlreadyExists):  # the first attempt may have made it
            await client.import_agent(f"{tmp_path}/cut", name="leo")
        assert (await stack.ledger("leo")).token_ids == (await stack.ledger("marco")).token_ids


RUN = """
workflow: short
agents:
  marco: {system: "You are marco."}
  lena: {system: "You are lena."}
phases: [{name: talk, agents: [marco, lena], rounds: 3, prompts: "What is the colour of the boat?"}]
"""


@pytest.mark.slow
async def test_a_run_of_a_workflow_through_cuts(stack: Stack) -> None:
    await stack.renew("gateway")
    async with behind_a_proxy(stack) as (proxy, client, outages):
        events = list[object]()
        async for event in client.workflows.stream(RUN, request_id="cut"):
            events.append(event)
            if isinstance(event, AgentDelta) and len(outages) < 3:
                proxy.cut_after(len(events))
        spoke = [event for event in events if isinstance(event, AgentSpoke)]
        finished = events[-1]
        assert isinstance(finished, WorkflowFinished)
        assert outages
        assert (finished.workflow.state, finished.workflow.turns) == (WORKFLOW_STATE_SUCCEEDED, len(spoke))
        assert len(spoke) == 6
        again = [event async for event in client.workflows.follow(finished.workflow.workflow_id)]
        assert [event for event in again if isinstance(event, AgentSpoke)] == spoke
        await client.workflows.delete(finished.workflow.workflow_id)
