"""Runs on machines that share a ledger: a node is killed with -9 in the middle of one, and another finishes it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from agentmem.channels import connect
from agentmem.v1 import agent_pb2, types_pb2, workflow_pb2, workflow_pb2_grpc
from tests.system.test_cluster import Cluster, Machine

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


def workflows(channel: grpc.aio.Channel) -> Any:
    return workflow_pb2_grpc.WorkflowServiceStub(channel)


def gateway(machine: Machine) -> grpc.aio.Channel:
    return connect(f"127.0.0.1:{machine.stack.ports['grpc']}")


async def spoken(call: Any, least: int) -> list[workflow_pb2.AgentSpoke]:
    """The first turns of a run that a gateway streams, and the run's name."""
    said: list[workflow_pb2.AgentSpoke] = []
    async for event in call:
        if event.HasField("agent_spoke"):
            said.append(event.agent_spoke)
            if len(said) == least:
                break
    return said


async def to_its_end(machine: Machine, workflow_id: str) -> list[workflow_pb2.RunWorkflowResponse]:
    """All events of a run through a gateway, read when it has ended: until then it is only looked at, so that nobody
    asks for it to go on.
    """
    async with gateway(machine) as channel, asyncio.timeout(90):
        while True:
            named = workflow_pb2.GetWorkflowRequest(workflow_id=workflow_id)
            state = (await workflows(channel).GetWorkflow(named)).workflow.state
            if state == workflow_pb2.WorkflowState.WORKFLOW_STATE_SUCCEEDED:
                break
            assert state in (
                workflow_pb2.WorkflowState.WORKFLOW_STATE_RUNNING,
                workflow_pb2.WorkflowState.WORKFLOW_STATE_INTERRUPTED,
            )
            await asyncio.sleep(0.2)
        request = workflow_pb2.RunWorkflowRequest(resume_workflow_id=workflow_id)
        return [event async for event in workflows(channel).RunWorkflow(request)]


async def turns_of(machine: Machine, agent: str) -> list[str]:
    """The names of an agent's turns in the ledger, the oldest first."""
    client = await machine.stack.client()
    listed = await client.agents.ListTurns(agent_pb2.ListTurnsRequest(key=client.key(agent)), timeout=10)
    return [turn.request_id for turn in sorted(listed.turns, key=lambda turn: turn.version)]


def numbers(names: Sequence[str]) -> list[int]:
    return [int(name.rpartition("/")[2]) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [("store", "worker", "gateway"), ("gateway",)], ids=["node", "gateway"])
async def test_another_node_finishes_the_run_of_one_that_was_killed(two: Cluster, killed: tuple[str, ...]) -> None:
    a, b = two.machines["a"], two.machines["b"]
    async with gateway(a) as channel:
        request = workflow_pb2.RunWorkflowRequest(request_id="r", definition_yaml=FILE)
        call = workflows(channel).RunWorkflow(request)
        started = await anext(aiter(call))
        workflow_id = started.started.workflow.workflow_id
        before = await spoken(call, BEFORE)
        a.stack.kill(*killed)
    events = await to_its_end(b, workflow_id)
    after = [event.agent_spoke for event in events if event.HasField("agent_spoke")]
    assert [(turn.agent_id, turn.text) for turn in after[:BEFORE]] == [(turn.agent_id, turn.text) for turn in before]
    assert len(after) == 2 * ROUNDS
    for agent in ("ada", "eve"):
        done = [event for event in events if _agent(event) == agent]
        names = await turns_of(b, agent)
        assert len(names) == len(set(names)) == len(done), "each turn and each listening is in the ledger once"
        assert numbers(names) == list(range(1, len(names) + 1))
        assert all(name.startswith(f"{workflow_id}/{agent}/") for name in names)
    assert await b.stack.metric("gateway", "agentmem_gateway_workflows_taken_over_total") == 1
    assert types_pb2.MATCH_NEW not in {turn.cache.match for turn in after[BEFORE + 2 :]}


def _agent(event: workflow_pb2.RunWorkflowResponse) -> str:
    """Whose turn or listening an event tells of; empty for others."""
    which = event.WhichOneof("event")
    return str(getattr(event, which).agent_id) if which in ("agent_spoke", "agent_listened") else ""
