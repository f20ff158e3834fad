"""The contract package's client on real services, beside plain turns: tools, models, runs, keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import trustme

from agentmem import AsyncClient, Called, Client, ClientTls, LoadStep, Message, ToolChoice, Workflow, errors
from agentmem.v1.workflow_pb2 import (
    AgentListened,
    AgentSpoke,
    PhaseStarted,
    WorkflowFinished,
    WorkflowStarted,
)
from tests.gateway.running import running as gateway_running
from tests.gateway.secured import add_key, revoke
from tests.scripted_model import write_scripted
from tests.system.stack import Stack, hosting

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "How the weather is.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """All three processes with two models: the demo's, and one that calls tools."""
    scripted = write_scripted(tmp_path_factory.mktemp("scripted") / "m", special_markers=True)
    flags = ("--model", f"scripted={scripted}", "--loaded-models", "2", "--pool-bytes", str(1 << 26))
    async with hosting("demo", "store", "worker", "gateway", worker_flags=flags) as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"127.0.0.1:{stack.ports['grpc']}") as client:
        yield client
        async for agent in client.agents():
            await client.agent(agent.name, model=agent.model).delete()


@pytest.mark.slow
async def test_a_tool_is_called_and_its_result_said(client: AsyncClient) -> None:
    marco = client.agent("marco", model="scripted")
    stream = marco.stream("hi", tools=[WEATHER])
    events = [event async for event in stream.events()]
    answer = stream.answer
    (call,) = answer.tool_calls
    assert (answer.text, answer.finish_reason) == ("I look.", "tool_calls")
    assert (call.name, call.arguments) == ("get_weather", {"city": "Paris"})
    assert events[-1] == Called(call)
    result = await marco.ask(Message("tool", "rain", tool_call_id=call.id), tools=[WEATHER])
    assert (result.text, result.finish_reason, result.memory.match) == ("It rains in Paris!", "stop", "extend")
    kept = await marco.messages()
    assert [message.role for message in kept] == ["user", "assistant", "tool", "assistant"]
    assert [(made.name, made.arguments) for made in kept[1].tool_calls] == [("get_weather", {"city": "Paris"})]
    # The whole chat again, as another program would send it, goes to the same memory.
    said = [*kept, Message("user", "both")]
    probed = (await marco.ask(said, tools=[WEATHER], memory_mode="auto")).memory
    assert (probed.match, probed.dropped_tokens) == ("extend", 0)


async def test_calls_that_cannot_be_are_refused(client: AsyncClient) -> None:
    with pytest.raises(errors.InvalidArgument) as raised:
        await client.agent("", model="scripted").ask("x", tools=[WEATHER], tool_choice=ToolChoice(names=("none",)))
    assert raised.value.field.startswith("tool_choice")
    with pytest.raises(errors.FailedPrecondition, match="no tool parser"):
        await client.agent("", model="demo").ask("hi", tools=[WEATHER])


async def test_models_are_loaded_step_by_step_and_unloaded(stack: Stack) -> None:
    def live() -> None:
        with Client(f"127.0.0.1:{stack.ports['grpc']}") as client:
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
                *("read", "self-test", "pool", "ready")
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
ENDLESS = RUN.replace("rounds: 2", "rounds: 100")


@pytest.mark.slow
async def test_a_workflow_is_run_watched_and_looked_at(stack: Stack) -> None:
    def live() -> None:
        with Client(f"127.0.0.1:{stack.ports['grpc']}") as client:
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


async def test_a_run_is_followed_from_elsewhere_and_cancelled(client: AsyncClient) -> None:
    running = asyncio.create_task(client.workflows.run(ENDLESS, request_id="endless"))
    found = list[Workflow]()
    async with asyncio.timeout(60):
        while not found:
            found = [run async for run in client.workflows.list() if run.name == "short"]
    spoke = 0
    async for event in client.workflows.follow(found[0].id):
        spoke += isinstance(event, AgentSpoke)
        if spoke == 2:
            break
    assert not running.done(), "who follows a run does not end it"
    assert (await client.workflows.cancel(found[0].id)).state == "cancelled"
    assert (await running).state == "cancelled"
    await client.workflows.delete(found[0].id)


@pytest.mark.slow
async def test_keys_and_tls_on_the_way_to_a_memory(stack: Stack, tmp_path: Path) -> None:
    ca = trustme.CA()
    server, mine = ca.issue_cert("127.0.0.1"), ca.issue_cert("me@example.org")
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    server.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    files = {"tls_cert": "cert.pem", "tls_key": "key.pem", "tls_client_ca": "ca.pem"}
    settings: dict[str, Any] = {name: tmp_path / file for name, file in files.items()}
    one, other = add_key(tmp_path, "team-a"), add_key(tmp_path, "team-b")
    tls = ClientTls(ca.cert_pem.bytes(), mine.cert_chain_pems[0].bytes(), mine.private_key_pem.bytes())

    def live(address: str) -> None:
        with Client(address, key=one, tls=tls) as client, Client(address, key=other, tls=tls) as stranger:
            marco = client.agent("marco")
            assert marco.ask("The key is red.", max_tokens=4).durable
            assert marco.info().namespace == "team-a"
            assert not stranger.agent("marco").exists()
            assert list(stranger.agents()) == []
            with pytest.raises(errors.PermissionDenied):
                stranger.models.load("scripted")
            with marco.stream("Go on.", max_tokens=3500, ignore_eos=True) as stream:
                pieces = iter(stream)
                next(pieces)
                revoke(tmp_path, one)
                with pytest.raises(errors.Unauthenticated):
                    list(pieces)
            with pytest.raises(errors.Unauthenticated):
                marco.info()
        with Client(address, key=add_key(tmp_path, "team-a"), tls=tls) as client:
            assert client.agent("marco").info().turns == 1
            client.agent("marco").delete()

    async with gateway_running(stack.run, keys=tmp_path / "keys.json", **settings) as gateway:
        await asyncio.to_thread(live, gateway.addresses["grpc"])
