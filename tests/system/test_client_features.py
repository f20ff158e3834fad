"""The contract package's client on real services, beside plain turns: tools, models, runs, keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agentmem import AsyncClient, Called, Client, LoadStep, Message, errors
from agentmem.v1.workflow_pb2 import (
    AgentListened,
    AgentSpoke,
    PhaseStarted,
    WorkflowFinished,
    WorkflowStarted,
)
from tests.scripted_model import write_scripted
from tests.system.stack import Stack, hosting

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    scripted = write_scripted(tmp_path_factory.mktemp("scripted") / "m", special_markers=True)
    flags = ("--model", f"scripted={scripted}", "--loaded-models", "2", "--pool-bytes", str(1 << 26))
    async with hosting("demo", "store", "worker", "gateway", worker_flags=flags) as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(stack.grpc) as client:
        yield client
        async for agent in client.agents():
            await client.agent(agent.name, model=agent.model).delete()


WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


@pytest.mark.slow
async def test_a_tool_is_called_and_its_result_said(client: AsyncClient) -> None:
    marco = client.agent("marco", model="scripted")
    stream = marco.stream("hi", tools=[WEATHER])
    events = [event async for event in stream.events()]
    (call,) = stream.answer.tool_calls
    assert (stream.answer.text, call.name, call.arguments) == ("I look.", "get_weather", {"city": "Paris"})
    assert events[-1] == Called(call)
    result = await marco.ask(Message("tool", "rain", tool_call_id=call.id), tools=[WEATHER])
    assert (result.text, result.finish_reason, result.memory.match) == ("It rains in Paris!", "stop", "extend")
    kept = await marco.messages()
    assert [message.role for message in kept] == ["user", "assistant", "tool", "assistant"]


async def test_models_are_loaded_step_by_step_and_unloaded(stack: Stack) -> None:
    def live() -> None:
        with Client(stack.grpc) as client:
            default, other = client.models.list()
            assert (default.name, default.is_default, default.state) == ("demo", True, "loaded")
            assert (other.name, other.is_default) == ("scripted", False)
            client.models.load("scripted")
            assert client.models.unload("scripted") > 0
            assert client.models.get("scripted").state == "registered"
            steps = list[LoadStep](client.models.loading("scripted"))
            assert [step.model is not None for step in steps] == [False] * (len(steps) - 1) + [True]
            stages = list(dict.fromkeys(step.stage for step in steps))
            assert [stage for stage in stages if stage not in ("wait", "fetch")] == [
                *("read", "measure", "prove", "pool", "ready")
            ]
            assert all(0 <= step.progress <= 1 for step in steps)
            loaded = steps[-1].model
            assert loaded is not None
            assert (loaded.state, loaded.tool_parser) == ("loaded", "json_tools")
            assert loaded.memory["pool_bytes"] > 0
            assert client.models.load("scripted").state == "loaded"
            with pytest.raises(errors.NotFound):
                client.models.load("none")
            with pytest.raises(errors.NotFound):
                client.models.get("none")

    await asyncio.to_thread(live)


RUN = """
workflow: short
variables: {what: house}
agents:
  marco: {system: "You are marco."}
  lena: {system: "You are lena."}
phases: [{name: talk, agents: [marco, lena], rounds: 2, prompts: "What is the colour of the ${what}?"}]
"""


@pytest.mark.slow
async def test_a_workflow_is_run_watched_and_looked_at(stack: Stack) -> None:
    def live() -> None:
        with Client(stack.grpc) as client:
            run = client.workflows.run(RUN, variables={"what": "boat"}, request_id="run-1")
            assert (run.name, run.state, run.turns, run.error) == ("short", "succeeded", 4, "")
            assert [member.name for member in run.members] == ["marco", "lena"]
            joined = client.workflows.run(RUN, variables={"what": "boat"}, request_id="run-1")
            assert (joined.id, joined.updated) == (run.id, run.updated)
            events = list(client.workflows.follow(run.id))
            assert isinstance(events[0], WorkflowStarted)
            assert isinstance(events[-1], WorkflowFinished)
            kinds = {type(event) for event in events}
            assert kinds >= {PhaseStarted, AgentSpoke, AgentListened}
            assert len([event for event in events if isinstance(event, AgentSpoke)]) == 4
            assert client.workflows.get(run.id) == run
            assert [each.id for each in client.workflows.list()] == [run.id]
            client.workflows.delete(run.id)
            with pytest.raises(errors.NotFound):
                client.workflows.get(run.id)
            with pytest.raises(errors.InvalidArgument) as raised:
                client.workflows.run(RUN.replace("rounds", "wounds"), variables={"what": "boat"})
            assert "wounds" in raised.value.message

    await asyncio.to_thread(live)
