"""Workflows on real processes: turns that extend, and runs that outlive their client, worker and gateway."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentmem import AsyncClient
from agentmem.client.workflows import AsyncWorkflows, RunEvent
from agentmem.v1 import types_pb2, workflow_pb2, workflow_pb2_grpc
from agentmem.v1.workflow_pb2 import AgentListened, AgentSpoke, PhaseStarted, WorkflowStarted
from tests.system import secrets_of_agents
from tests.system.client import refused
from tests.system.shared import DEMO, SharedStacks
from tests.system.stack import Stack

DILEMMA = Path(__file__).parents[2] / "deploy" / "examples" / "workflows" / "prisoners-dilemma.yaml"
LONG = """
workflow: long
agents:
  marco: {system: "You are marco."}
  lena: {system: "You are lena."}
phases: [{name: talk, agents: [marco, lena], rounds: 100, prompts: "What is the colour of the boat?"}]
"""


@pytest.fixture
async def stack(stacks: SharedStacks, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    killable = request.node.get_closest_marker("kills") is not None
    async with stacks.using(DEMO, "store", "worker", "gateway", killable=killable) as stack:
        yield stack


@pytest.fixture
async def runs(stack: Stack) -> AsyncIterator[AsyncWorkflows]:
    async with AsyncClient(stack.grpc) as client:
        yield client.workflows


async def undisturbed(runs: AsyncWorkflows) -> list[RunEvent]:
    """The dilemma's events: a run once, then read again."""
    return [event async for event in runs.stream(DILEMMA.read_text(), request_id="undisturbed")]


def spoken(events: Sequence[RunEvent]) -> list[AgentSpoke]:
    return [event for event in events if isinstance(event, AgentSpoke)]


def words(events: Sequence[RunEvent]) -> dict[str, list[str]]:
    """Return each agent's texts in order: among agents that speak at the same time, no order is promised."""
    said: dict[str, list[str]] = {}
    for turn in spoken(events):
        said.setdefault(turn.agent_id, []).append(turn.text)
    return said


def recomputed(events: Sequence[RunEvent]) -> list[str]:
    """Turns and listenings that did not go on from all that their agent had, and from the pool."""
    wrong, tokens = [], dict[str, int]()
    for done in (event for event in events if isinstance(event, AgentSpoke | AgentListened)):
        hot = sum(part.tokens for part in done.cache.cached if part.tier == types_pb2.TIER_HOT)
        expected = types_pb2.MATCH_EXTEND if done.agent_id in tokens else types_pb2.MATCH_NEW
        if done.cache.match != expected or hot != tokens.get(done.agent_id, 0):
            wrong.append(f"{done.agent_id}: {done.cache}, and the ledger had {tokens.get(done.agent_id)}")
        tokens[done.agent_id] = done.usage.prompt_tokens + done.usage.completion_tokens
    return wrong


@pytest.mark.slow
async def test_the_prisoners_dilemma_re_prefills_nothing(runs: AsyncWorkflows, stack: Stack) -> None:
    events = await undisturbed(runs)
    turns = spoken(events)
    assert len(turns) == 25
    # The analyst comes last, and is introduced at the beginning: nobody's first turn is a first prompt.
    assert {turn.cache.match for turn in turns} == {types_pb2.MATCH_EXTEND}
    assert recomputed(events) == []
    client = await stack.client()
    left = [agent for agent in await client.listed() if agent.key.agent_id.startswith("wf-")]
    assert not left, "they were of this run only"


@pytest.mark.slow
@pytest.mark.kills
async def test_kill_9_between_phases_changes_no_word(runs: AsyncWorkflows, stack: Stack) -> None:
    expected = words(await undisturbed(runs))
    client, events = await stack.client(), list[RunEvent]()
    async for event in runs.stream(DILEMMA.read_text()):
        events.append(event)
        if isinstance(event, PhaseStarted) and (event.phase, event.round) == ("yard", 1):
            for agent in await client.listed():
                await client.evict(agent.key.agent_id)  # to the disk
            stack.kill("worker", "store")
            stack.start("store", "worker")
    assert words(events) == expected
    tiers = {part.tier for turn in spoken(events) for part in turn.cache.cached}
    assert types_pb2.TIER_WARM in tiers, "what was on disk was not computed again"


@pytest.mark.slow
@pytest.mark.kills
async def test_a_gateway_that_is_started_again_goes_on_with_its_runs_by_itself(
    runs: AsyncWorkflows, stack: Stack
) -> None:
    """Also with those of one that was killed, once it is gone for long enough."""
    run, heard = "", 0
    async for event in runs.stream(LONG):
        if isinstance(event, WorkflowStarted):
            run = event.workflow.workflow_id
        heard += isinstance(event, AgentSpoke)
        if heard == 3:
            break
    for number in (signal.SIGKILL, signal.SIGTERM):
        stack.kill("gateway", number=number)
        await stack.renew("gateway")
        async with AsyncClient(stack.grpc) as again, asyncio.timeout(30):
            turns = (await again.workflows.get(run)).turns
            while (await again.workflows.get(run)).state != "interrupted":
                await asyncio.sleep(0.05)
            while (found := await again.workflows.get(run)).turns <= turns + 1:
                await asyncio.sleep(0.1)
            assert turns >= 3 and found.state == "running"
    async with AsyncClient(stack.grpc) as again:
        await again.workflows.cancel(run)


async def test_an_agent_that_persists_goes_on_where_it_was(runs: AsyncWorkflows, stack: Stack) -> None:
    text = """
workflow: visit
agents: {marco: {system: "You are marco.", persist: true, id: visitor}}
phases: [{name: only, agents: [marco], prompts: "${what}"}]
variables: {what: "The colour of the boat is green."}
"""
    first = [event async for event in runs.stream(text)]
    assert words(first) == {"marco": ["Noted, the colour of the boat is green."]}
    second = [event async for event in runs.stream(text, variables={"what": "What is the colour of the boat?"})]
    assert words(second) == {"marco": ["The colour of the boat is green."]}
    assert not [event for event in second if isinstance(event, AgentListened)], "it was introduced before"
    assert bytes((await stack.ledger("visitor")).text).count(b"You are marco.") == 1


async def test_requests_that_name_no_run_or_change_one_are_refused(stack: Stack) -> None:
    stub: Any = workflow_pb2_grpc.WorkflowServiceStub((await stack.client("gateway")).channel)
    changed = {"resume_workflow_id": "wf-none", "variables": {"a": "b"}}
    for fields, field in (({}, "source"), (changed, "variables")):
        call = stub.RunWorkflow(workflow_pb2.RunWorkflowRequest(**fields))
        await refused(call.read(), grpc.StatusCode.INVALID_ARGUMENT, field)


@pytest.mark.slow
async def test_each_ledger_is_what_its_agent_saw_and_no_secret_is_in_another(
    runs: AsyncWorkflows, stack: Stack
) -> None:
    assert (await runs.run(secrets_of_agents.WORKFLOW)).state == "succeeded"
    ledgers = {agent: await stack.ledger(agent) for agent in secrets_of_agents.SEEN}
    for agent, seen in secrets_of_agents.SEEN.items():
        text = bytes(ledgers[agent].text).decode()
        assert text == secrets_of_agents.rendered(seen)
        assert list(ledgers[agent].token_ids) == secrets_of_agents.tokens(text)
    for secret, knowing in secrets_of_agents.SECRETS.items():
        token = secrets_of_agents.tokens(f" {secret}")[-1]
        assert {agent for agent, ledger in ledgers.items() if secret in bytes(ledger.text).decode()} == knowing
        assert {agent for agent, ledger in ledgers.items() if token in ledger.token_ids} == knowing
