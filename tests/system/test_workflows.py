"""Workflows on real processes: turns that extend, and runs that outlive their client, worker and gateway."""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentmem.channels import connect
from agentmem.v1 import agent_pb2, types_pb2, workflow_pb2, workflow_pb2_grpc
from gateway.cli.main import main
from tests.system import secrets_of_agents
from tests.system.stack import Stack

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples" / "workflows"
LONG = """
workflow: long
agents:
  marco: {system: "You are marco."}
  lena: {system: "You are lena."}
phases: [{name: talk, agents: [marco, lena], rounds: 100, prompts: "What is the colour of the boat?"}]
"""
State = workflow_pb2.WorkflowState
Event = workflow_pb2.RunWorkflowResponse


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    stack = Stack("demo", gateway_flags=("--max-workflows", "2"))
    asyncio.run(stack.up("store", "worker", "gateway"))
    yield stack
    asyncio.run(stack.destroy())


@pytest.fixture
async def runs(stack: Stack) -> AsyncIterator[Any]:
    await stack.renew("store", "worker", "gateway")
    async with workflows(stack) as stub:
        yield stub


@asynccontextmanager
async def workflows(stack: Stack) -> AsyncIterator[Any]:
    async with connect(f"127.0.0.1:{stack.ports['grpc']}") as channel:
        yield workflow_pb2_grpc.WorkflowServiceStub(channel)


def asked(text: str, request_id: str = "", **fields: Any) -> workflow_pb2.RunWorkflowRequest:
    request_id = request_id or uuid.uuid4().hex
    return workflow_pb2.RunWorkflowRequest(request_id=request_id, definition_yaml=text, **fields)


async def events_of(call: Any, until: str = "", count: int = 1) -> list[Event]:
    """All events of a run, or those up to the `count`-th of a kind."""
    events = []
    try:
        async for event in call:
            events.append(event)
            count -= event.WhichOneof("event") == until
            if not count:
                break
    finally:
        call.cancel()
    return events


def spoken(events: Sequence[Event]) -> list[tuple[str, str]]:
    return [(e.agent_spoke.agent_id, e.agent_spoke.text) for e in events if e.HasField("agent_spoke")]


def words(spoken: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """What each agent said, in its order: of agents that speak at the same time, who ends first is nobody's promise."""
    said: dict[str, list[str]] = {}
    for agent, text in spoken:
        said.setdefault(agent, []).append(text)
    return said


def ended(events: Sequence[Event]) -> str:
    return State.Name(events[-1].finished.workflow.state).removeprefix("WORKFLOW_STATE_")


def recomputed(events: Sequence[Event]) -> list[str]:
    """Turns and listenings that did not go on from all that their agent had, and from the pool."""
    wrong, tokens = [], {}
    for event in events:
        which = event.WhichOneof("event")
        if which not in ("agent_spoke", "agent_listened"):
            continue
        done = getattr(event, which)
        hot = sum(part.tokens for part in done.cache.cached if part.tier == types_pb2.TIER_HOT)
        first = done.agent_id not in tokens
        expected = types_pb2.MATCH_NEW if first else types_pb2.MATCH_EXTEND
        if done.cache.match != expected or hot != tokens.get(done.agent_id, 0):
            wrong.append(f"{which} {done.agent_id}: {done.cache}, and the ledger had {tokens.get(done.agent_id)}")
        tokens[done.agent_id] = done.usage.prompt_tokens + done.usage.completion_tokens
    return wrong


@pytest.fixture(scope="module")
def dilemma() -> str:
    return (EXAMPLES / "prisoners-dilemma.yaml").read_text()


@pytest.mark.slow
async def test_the_prisoners_dilemma_re_prefills_nothing(runs: Any, dilemma: str, stack: Stack) -> None:
    events = await events_of(runs.RunWorkflow(asked(dilemma, "undisturbed")))
    assert ended(events) == "SUCCEEDED"
    turns = [event.agent_spoke for event in events if event.HasField("agent_spoke")]
    assert len(turns) == 25
    # The analyst comes last, and is introduced at the beginning: nobody's first turn is a first prompt.
    assert {turn.cache.match for turn in turns} == {types_pb2.MATCH_EXTEND}
    assert recomputed(events) == []
    client = await stack.client()
    listed = await client.agents.ListAgents(
        agent_pb2.ListAgentsRequest(namespace="default", page_size=1000), timeout=10
    )
    assert not [agent for agent in listed.agents if agent.key.agent_id.startswith("wf-")], "they were of this run only"


@pytest.mark.slow
async def test_kill_9_between_phases_changes_no_word(runs: Any, dilemma: str, stack: Stack) -> None:
    undisturbed = await events_of(runs.RunWorkflow(asked(dilemma, "undisturbed")))
    client = await stack.client()
    call = runs.RunWorkflow(asked(dilemma))
    events = []
    async for event in call:
        events.append(event)
        if event.phase_started.phase == "yard" and event.phase_started.round == 1:
            for agent in (await client.agents.ListAgents(agent_pb2.ListAgentsRequest(namespace="default"))).agents:
                await client.agents.EvictAgent(agent_pb2.EvictAgentRequest(key=agent.key), timeout=30)  # to the disk
            stack.kill("worker", "store")
            stack.start("store", "worker")
    assert ended(events) == "SUCCEEDED"
    assert words(spoken(events)) == words(spoken(undisturbed))
    tiers = {part.tier for event in events for part in event.agent_spoke.cache.cached}
    assert types_pb2.TIER_WARM in tiers, "what was on disk was not computed again"


async def got(runs: Any, workflow_id: str) -> workflow_pb2.Workflow:
    answer = await runs.GetWorkflow(workflow_pb2.GetWorkflowRequest(workflow_id=workflow_id))
    found: workflow_pb2.Workflow = answer.workflow
    return found


@pytest.mark.slow
async def test_a_gateway_that_is_started_again_goes_on_with_its_runs_by_itself(runs: Any, stack: Stack) -> None:
    """Also with those of one that was killed, once it is gone for long enough."""
    begun = await events_of(runs.RunWorkflow(asked(LONG)), "agent_spoke", 3)
    run = begun[0].started.workflow.workflow_id
    for number in (signal.SIGKILL, signal.SIGTERM):
        stack.kill("gateway", number=number)
        await stack.renew("gateway")
        async with workflows(stack) as again:
            turns = (await got(again, run)).turns
            async with asyncio.timeout(30):
                while (await got(again, run)).state != State.WORKFLOW_STATE_INTERRUPTED:
                    await asyncio.sleep(0.05)
                while (found := await got(again, run)).turns <= turns + 1:
                    await asyncio.sleep(0.1)
            assert turns >= 3 and found.state == State.WORKFLOW_STATE_RUNNING
    async with workflows(stack) as again:
        await again.CancelWorkflow(workflow_pb2.CancelWorkflowRequest(workflow_id=run))


async def newest(runs: Any) -> Sequence[workflow_pb2.Workflow]:
    found: Sequence[workflow_pb2.Workflow] = (
        await runs.ListWorkflows(workflow_pb2.ListWorkflowsRequest(page_size=1))
    ).workflows
    return found


@pytest.mark.slow
async def test_the_command_shows_a_run_through_the_end_of_its_gateway(
    runs: Any, dilemma: str, stack: Stack, tmp_path: Path
) -> None:
    undisturbed = await events_of(runs.RunWorkflow(asked(dilemma, "undisturbed")))
    file, door = tmp_path / "dilemma.yaml", f"127.0.0.1:{stack.ports['grpc']}"
    file.write_text(dilemma)
    command = ["run", str(file), "--gateway", door, "--json"]
    running = asyncio.create_task(asyncio.to_thread(CliRunner().invoke, main, command))
    async with asyncio.timeout(60):
        while not [run for run in await newest(runs) if run.turns >= 3 and run.state == State.WORKFLOW_STATE_RUNNING]:
            await asyncio.sleep(0.02)
    stack.kill("gateway")
    await stack.renew("gateway")
    shown = await running
    assert shown.exit_code == 0, shown.stderr
    assert "the connection to the gateway was lost" in shown.stderr
    events = [json.loads(line) for line in shown.stdout.splitlines()]
    said = [(each["agent_id"], each["text"]) for event in events if (each := event.get("agent_spoke"))]
    assert words(said) == words(spoken(undisturbed))
    numbers = [e["sequence"] for e in events if e.keys().isdisjoint(("agent_speaking", "agent_delta"))]
    assert numbers == [*range(1, len(numbers) + 1)]


async def test_an_agent_that_persists_goes_on_where_it_was(runs: Any, stack: Stack) -> None:
    text = """
workflow: visit
agents: {marco: {system: "You are marco.", persist: true, id: visitor}}
phases: [{name: only, agents: [marco], prompts: "${what}"}]
variables: {what: "The colour of the boat is green."}
"""
    first = await events_of(runs.RunWorkflow(asked(text)))
    assert spoken(first) == [("marco", "Noted, the colour of the boat is green.")]
    question = {"what": "What is the colour of the boat?"}
    second = await events_of(runs.RunWorkflow(asked(text, variables=question)))
    assert spoken(second) == [("marco", "The colour of the boat is green.")]
    assert not [event for event in second if event.HasField("agent_listened")], "it was introduced before"
    assert bytes((await stack.ledger("visitor")).text).count(b"You are marco.") == 1


@pytest.mark.slow
async def test_each_ledger_is_what_its_agent_saw_and_no_secret_is_in_another(runs: Any, stack: Stack) -> None:
    events = await events_of(runs.RunWorkflow(asked(secrets_of_agents.WORKFLOW)))
    assert ended(events) == "SUCCEEDED"
    ledgers = {agent: await stack.ledger(agent) for agent in secrets_of_agents.SEEN}
    for agent, seen in secrets_of_agents.SEEN.items():
        text = bytes(ledgers[agent].text).decode()
        assert text == secrets_of_agents.rendered(seen)
        assert list(ledgers[agent].token_ids) == secrets_of_agents.tokens(text)
    for secret, knowing in secrets_of_agents.SECRETS.items():
        token = secrets_of_agents.tokens(f" {secret}")[-1]
        assert {agent for agent, ledger in ledgers.items() if secret in bytes(ledger.text).decode()} == knowing
        assert {agent for agent, ledger in ledgers.items() if token in ledger.token_ids} == knowing
