"""Runs on machines that share a ledger: a node is killed with -9 in the middle of one, and another finishes it."""

from __future__ import annotations

import asyncio

import pytest

from agentmem import AsyncClient
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1.workflow_pb2 import AgentListened, AgentSpoke, WorkflowStarted
from tests.system.test_cluster import Cluster

ROUNDS = 12
FILE = f"""
workflow: talk
defaults: {{max_tokens: 6}}
agents:
  ada: {{system: You are ada., persist: true}}
  eve: {{system: You are eve., persist: true}}
phases: [{{name: only, agents: [ada, eve], rounds: {ROUNDS}, prompts: What is the colour of the boat?}}]
"""
BEFORE = 5
"""Turns that are heard before the node dies."""


def said(turns: list[AgentSpoke]) -> list[tuple[str, str]]:
    return [(turn.agent_id, turn.text) for turn in turns]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [("store", "worker", "gateway"), ("gateway",)], ids=["node", "gateway"])
async def test_another_node_finishes_the_run_of_one_that_was_killed(two: Cluster, killed: tuple[str, ...]) -> None:
    a, b = two.machines["a"].stack, two.machines["b"].stack
    before, workflow_id = list[AgentSpoke](), ""
    async with AsyncClient(a.grpc) as client:
        async for event in client.workflows.stream(FILE, request_id="r"):
            if isinstance(event, WorkflowStarted):
                workflow_id = event.workflow.workflow_id
            if isinstance(event, AgentSpoke):
                before.append(event)
            if len(before) == BEFORE:
                break
        a.kill(*killed)
    async with AsyncClient(b.grpc) as client, asyncio.timeout(90):
        while (state := (await client.workflows.get(workflow_id)).state) != "succeeded":  # nobody asks it to go on
            assert state in ("running", "interrupted")
            await asyncio.sleep(0.2)
        events = [event async for event in client.workflows.follow(workflow_id)]
    after = [event for event in events if isinstance(event, AgentSpoke)]
    assert said(after[:BEFORE]) == said(before)
    assert len(after) == 2 * ROUNDS
    worker = await b.client()
    for agent in ("ada", "eve"):
        done = [each for each in events if isinstance(each, AgentSpoke | AgentListened) and each.agent_id == agent]
        listed = await worker.agents.ListTurns(agent_pb2.ListTurnsRequest(key=worker.key(agent)), timeout=10)
        names = [turn.request_id for turn in sorted(listed.turns, key=lambda turn: turn.version)]
        wanted = [f"{workflow_id}/{agent}/{number}" for number in range(1, len(done) + 1)]
        assert names == wanted, "each turn and each listening is in the ledger once"
    assert await b.metric("gateway", "agentmem_gateway_workflows_taken_over_total") == 1
    assert types_pb2.MATCH_NEW not in {turn.cache.match for turn in after[BEFORE + 2 :]}
