"""A run belongs to one node: who asks another is answered by that one, and what nobody attends to is gone on with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest

from agentmem.channels import connect
from agentmem.process.cluster_tls import read_cluster_tls
from agentmem.v1 import workflow_pb2, workflow_pb2_grpc, workflow_run_pb2
from gateway.workflows.runs import Runs
from tests.gateway.cluster.run_records import SharedTurns
from tests.gateway.cluster.world import HOST, World, cluster, eventually

FILE = """
workflow: talk
agents: {ada: {system: You are ada.}, bob: {}}
phases: [{name: only, agents: [ada, bob], rounds: 2, prompts: speak}]
"""
TURNS = 4
State = workflow_pb2.WorkflowState


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takeovers come soon, and one gateway after the other."""
    monkeypatch.setattr("gateway.workflows.takeover.PERIOD_SECONDS", 0.1)
    monkeypatch.setattr("gateway.workflows.takeover.SURE_SECONDS", 0.2)
    monkeypatch.setattr("gateway.workflows.takeover.TURN_SECONDS", 1.0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with cluster("a", "b", "c") as running:
        yield running


@pytest.fixture
def turns(world: World) -> SharedTurns:
    """What all workers commit to."""
    shared = SharedTurns()
    for node in world.nodes.values():
        node.worker.script = shared
    return shared


def stub(channel: grpc.aio.Channel) -> Any:
    return workflow_pb2_grpc.WorkflowServiceStub(channel)


def runs(world: World, name: str) -> Runs:
    """The runs of a node's gateway."""
    return world[name].gateway.parts.extensions[-1].runs


def where(world: World) -> list[str]:
    """The nodes whose gateways go on with a run."""
    return [name for name in world.nodes if runs(world, name).live.by_key]


class Watcher:
    """Who follows a run through one gateway, from the beginning."""

    def __init__(self, world: World, at: str, **source: str) -> None:
        self.events: list[workflow_pb2.RunWorkflowResponse] = []
        self.error: grpc.aio.AioRpcError | None = None
        self.task = asyncio.create_task(self._watch(world, at, source))

    async def _watch(self, world: World, at: str, source: dict[str, str]) -> None:
        async with world[at].channel() as channel:
            try:
                async for event in stub(channel).RunWorkflow(workflow_pb2.RunWorkflowRequest(**source)):
                    self.events.append(event)
            except grpc.aio.AioRpcError as error:
                self.error = error

    @property
    def deltas(self) -> str:
        """What was heard of the turns as they streamed."""
        return "".join(event.agent_delta.text for event in self.events)

    @property
    def workflow_id(self) -> str:
        """Whose events these are."""
        return self.events[0].started.workflow.workflow_id

    async def ended(self) -> workflow_pb2.Workflow:
        """The run as it ended."""
        async with asyncio.timeout(30):
            await self.task
        assert self.error is None, self.error
        return self.events[-1].finished.workflow


async def begun(world: World, turns: SharedTurns, at: str = "a") -> Watcher:
    """A run in the middle of its first turn, and who began it."""
    first = Watcher(world, at, request_id="r", definition_yaml=FILE)
    await eventually(lambda: bool(turns.begun) and bool(first.deltas))
    assert where(world) == [at]
    return first


async def states(world: World, at: str, workflow_id: str) -> set[int]:
    """How a gateway says that a run is, asked in both ways."""
    async with world[at].channel() as channel:
        got = await stub(channel).GetWorkflow(workflow_pb2.GetWorkflowRequest(workflow_id=workflow_id))
        listed = await stub(channel).ListWorkflows(workflow_pb2.ListWorkflowsRequest())
    return {got.workflow.state, *(run.state for run in listed.workflows)}


def owner(world: World) -> tuple[str, int, str]:
    """Who has the run, as its record says."""
    [kept] = world.ledger.runs.kept.values()
    said = workflow_run_pb2.RunOwner.FromString(kept.record.summary)
    assert kept.owner is None or kept.owner == (said.node, said.epoch)
    return said.node, said.epoch, said.key_id


def vanish(world: World, name: str) -> None:
    """A node is cut off: the others do not hear of it, and it has no database."""
    world.ledger.gone.add(name)
    world[name].store.away = True


def come_back(world: World, name: str) -> None:
    world.ledger.gone.discard(name)
    world[name].store.away = False


@pytest.mark.parametrize("by", ["request", "name"])
async def test_a_run_is_watched_through_another_gateway(world: World, turns: SharedTurns, by: str) -> None:
    first = await begun(world, turns)
    source = {"request_id": "r", "definition_yaml": FILE}
    other = Watcher(world, "b", **(source if by == "request" else {"resume_workflow_id": first.workflow_id}))
    await eventually(lambda: len(other.events) > 1)
    turns.gate.set()
    for end in (await first.ended(), await other.ended()):
        assert (end.state, end.turns) == (State.WORKFLOW_STATE_SUCCEEDED, TURNS)
    logged = [
        event for event in first.events if not (event.HasField("agent_delta") or event.HasField("agent_speaking"))
    ]
    assert [event for event in other.events if event in logged] == logged
    assert "hello" in other.deltas, "what streams comes through"
    assert len(turns.committed) == len(set(turns.committed)) == TURNS
    assert owner(world) == ("", 0, ""), "what has ended is nobody's"


async def test_all_gateways_say_how_a_run_is(world: World, turns: SharedTurns) -> None:
    first = await begun(world, turns)
    assert owner(world) == ("a", 1, "")
    for at in "abc":
        assert await states(world, at, first.workflow_id) == {State.WORKFLOW_STATE_RUNNING}
    turns.gate.set()
    await first.ended()
    for at in "abc":
        assert await states(world, at, first.workflow_id) == {State.WORKFLOW_STATE_SUCCEEDED}


async def test_a_client_that_leaves_another_gateway_leaves_the_run(world: World, turns: SharedTurns) -> None:
    first = await begun(world, turns)
    other = Watcher(world, "b", resume_workflow_id=first.workflow_id)
    await eventually(lambda: len(other.events) > 1)
    other.task.cancel()
    turns.gate.set()
    assert (await first.ended()).state == State.WORKFLOW_STATE_SUCCEEDED


async def test_a_run_is_cancelled_and_deleted_through_another_gateway(world: World, turns: SharedTurns) -> None:
    first = await begun(world, turns)
    async with world["b"].channel() as channel:
        named = workflow_pb2.DeleteWorkflowRequest(workflow_id=first.workflow_id)
        with pytest.raises(grpc.aio.AioRpcError) as running:
            await stub(channel).DeleteWorkflow(named)
        assert running.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        cancel = workflow_pb2.CancelWorkflowRequest(workflow_id=first.workflow_id)
        for _ in range(2):
            answer = await stub(channel).CancelWorkflow(cancel)
            assert answer.workflow.state == State.WORKFLOW_STATE_CANCELLED
        assert (await first.ended()).state == State.WORKFLOW_STATE_CANCELLED
        assert where(world) == [] and turns.committed == []
        await stub(channel).DeleteWorkflow(named)
    assert world.ledger.runs.kept == {}


async def test_a_node_that_is_gone_leaves_its_runs_to_another_and_stops_when_it_is_back(
    world: World, turns: SharedTurns
) -> None:
    """Its turn in progress ends when the other has committed that turn: it is there once."""
    first = await begun(world, turns)
    before = list(turns.begun)
    vanish(world, "a")
    await eventually(lambda: where(world) in (["a", "b"], ["a", "c"]))
    (new,) = set(where(world)) - {"a"}
    await eventually(lambda: turns.begun[len(before) :] == before, 20)
    turns.gate.set()
    joined = Watcher(world, new, resume_workflow_id=first.workflow_id)
    end = await joined.ended()
    assert (end.state, end.turns) == (State.WORKFLOW_STATE_SUCCEEDED, TURNS)
    come_back(world, "a")
    await eventually(lambda: where(world) == [])
    await asyncio.wait({first.task}, timeout=20)
    assert first.error is not None and first.error.code() is grpc.StatusCode.UNAVAILABLE
    assert "send the request again" in (first.error.details() or "")
    assert len(turns.committed) == len(set(turns.committed)) == TURNS
    again = Watcher(world, "a", request_id="r", definition_yaml=FILE)
    assert (await again.ended()).turns == TURNS
    taken = [node.gateway.parts.extensions[-1].runs._metrics.taken_over._value.get() for node in world.nodes.values()]  # type: ignore[attr-defined]
    assert sum(taken) == 1


async def test_who_asks_first_takes_a_run_over(
    world: World, turns: SharedTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only upkeep does; and until then the run is interrupted."""
    monkeypatch.setattr("gateway.workflows.takeover.SURE_SECONDS", 1000.0)
    first = await begun(world, turns)
    vanish(world, "a")
    await eventually(lambda: world["c"].ready == 2)
    assert await states(world, "c", first.workflow_id) == {State.WORKFLOW_STATE_INTERRUPTED}
    turns.gate.set()
    assert (await Watcher(world, "c", resume_workflow_id=first.workflow_id).ended()).turns == TURNS
    come_back(world, "a")
    await eventually(lambda: where(world) == [])
    assert len(turns.committed) == len(set(turns.committed)) == TURNS


@pytest.mark.parametrize("compares", [True, False])
async def test_of_two_that_take_a_run_over_at_once_one_does(
    world: World, turns: SharedTurns, monkeypatch: pytest.MonkeyPatch, *, compares: bool
) -> None:
    """A store that does not compare versions would let both."""
    monkeypatch.setattr("gateway.workflows.takeover.SURE_SECONDS", 1000.0)
    first = await begun(world, turns)
    workflow_id = first.workflow_id
    vanish(world, "a")
    await eventually(lambda: world["b"].ready == world["c"].ready == 2)
    world.ledger.runs.compares = compares
    took = await asyncio.gather(*(runs(world, name).take_over("default", workflow_id) for name in "bc"))
    assert took.count(True) == (1 if compares else 2)
    world.ledger.runs.compares = True
    if compares:
        loser = "bc"[took.index(False)]
        joined = Watcher(world, loser, resume_workflow_id=workflow_id)
        turns.gate.set()
        assert (await joined.ended()).turns == TURNS
        assert runs(world, loser).live.by_key == {}
    turns.gate.set()
    come_back(world, "a")
    await eventually(lambda: where(world) == [])
    assert len(turns.committed) == len(set(turns.committed)), "the workers' ledger has each turn once all the same"


async def test_a_node_that_drains_leaves_its_runs_at_once(world: World, turns: SharedTurns) -> None:
    first = await begun(world, turns)
    await world["a"].leave()
    world.ledger.gone.add("a")
    await asyncio.wait({first.task}, timeout=20)
    assert first.error is not None and first.error.code() is grpc.StatusCode.UNAVAILABLE
    await eventually(lambda: where(world) in (["b"], ["c"]))
    turns.gate.set()
    assert (await Watcher(world, "b", resume_workflow_id=first.workflow_id).ended()).turns == TURNS
    assert len(turns.committed) == len(set(turns.committed)) == TURNS


async def test_a_store_that_was_started_again_does_not_cost_a_gateway_its_runs(
    world: World, turns: SharedTurns
) -> None:
    """The node has another epoch then, which the gateway writes into its runs' records."""
    first = await begun(world, turns)
    world.ledger.epochs["a"] = 2
    await eventually(lambda: owner(world) == ("a", 2, ""))
    for other in "bc":
        before = world[other].store.looked_for_runs
        await eventually(lambda other=other, before=before: world[other].store.looked_for_runs > before + 4)  # type: ignore[misc]
    assert where(world) == ["a"]
    turns.gate.set()
    assert (await first.ended()).turns == TURNS


async def test_a_gateway_that_was_started_again_goes_on_with_its_runs(world: World, turns: SharedTurns) -> None:
    first = await begun(world, turns)
    [run] = runs(world, "a").live.by_key.values()
    run.task.cancel()  # as a gateway that dies: its record stays as it is
    await eventually(lambda: len(turns.begun) == 2 and where(world) == ["a"])
    turns.gate.set()
    assert (await Watcher(world, "b", resume_workflow_id=first.workflow_id).ended()).turns == TURNS


async def test_a_node_asks_for_its_caller(world: World, turns: SharedTurns, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run then is for the key that another node names, if no gateway has taken it over for the first key before."""

    async def never(*_: object) -> bool:
        return False

    monkeypatch.setattr(Runs, "take_over", never)
    first = await begun(world, turns)
    [run] = runs(world, "a").live.by_key.values()
    run.task.cancel()
    await asyncio.wait({run.task})
    tls = read_cluster_tls(world.certificates, HOST).client()
    async with connect(world["a"].address, tls=tls) as channel:
        request = workflow_pb2.RunWorkflowRequest(namespace="default", resume_workflow_id=first.workflow_id)
        call = stub(channel).RunWorkflow(request, metadata=(("agentmem-key-id", "k1"),))
        await anext(aiter(call))
        await eventually(lambda: owner(world) == ("a", 1, "k1"))  # the run begins with what its record has already
        for wrong in (
            workflow_pb2.RunWorkflowRequest(resume_workflow_id=first.workflow_id),
            workflow_pb2.RunWorkflowRequest(namespace="default", definition_yaml=FILE),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await anext(aiter(stub(channel).RunWorkflow(wrong)))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        other_namespace = workflow_pb2.CancelWorkflowRequest(namespace="n", workflow_id=first.workflow_id)
        with pytest.raises(grpc.aio.AioRpcError) as other:
            await stub(channel).CancelWorkflow(other_namespace)
        assert other.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_node_does_not_ask_on(world: World, turns: SharedTurns) -> None:
    """A gateway that believes that another has a run, which believes the same of a third, is told to ask again."""
    first = await begun(world, turns)
    tls = read_cluster_tls(world.certificates, HOST).client()
    async with connect(world["b"].address, tls=tls) as channel:
        request = workflow_pb2.RunWorkflowRequest(namespace="default", resume_workflow_id=first.workflow_id)
        with pytest.raises(grpc.aio.AioRpcError) as followed:
            await anext(aiter(stub(channel).RunWorkflow(request)))
        cancel = workflow_pb2.CancelWorkflowRequest(namespace="default", workflow_id=first.workflow_id)
        with pytest.raises(grpc.aio.AioRpcError) as cancelled:
            await stub(channel).CancelWorkflow(cancel)
    assert followed.value.code() is cancelled.value.code() is grpc.StatusCode.UNAVAILABLE
    assert where(world) == ["a"]


async def test_a_node_that_cannot_be_reached_is_named(world: World, turns: SharedTurns) -> None:
    first = await begun(world, turns)
    await world["a"].gateway.parts.cluster.door.stop(0)  # type: ignore[union-attr]
    other = Watcher(world, "b", resume_workflow_id=first.workflow_id)
    await asyncio.wait({other.task}, timeout=20)
    assert other.error is not None and other.error.code() is grpc.StatusCode.UNAVAILABLE
    assert "the node a" in (other.error.details() or "")
    turns.gate.set()
    assert (await first.ended()).turns == TURNS


async def test_a_node_in_another_epoch_does_not_attend_to_earlier_runs(world: World) -> None:
    node = world["b"].gateway.parts.cluster
    assert node is not None and node.attends("a", 1)
    world.ledger.epochs["a"] = 2
    await eventually(lambda: node.attends("a", 2))
    assert not node.attends("a", 1)


async def test_a_run_is_watched_over_rest_through_another_gateway(world: World, turns: SharedTurns) -> None:
    """Its events come as they happen; a stream that is taken up again goes on behind what it had."""
    first = await begun(world, turns)
    path = f"/v1/workflows/{first.workflow_id}"

    async def events(http: httpx.AsyncClient, after: int = 0) -> AsyncIterator[tuple[str, Any]]:
        async with http.stream("GET", f"{path}/events", params={"after_sequence": after}) as answer:
            assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
            kind = ""
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    yield kind, json.loads(value)

    async with httpx.AsyncClient(base_url=world["b"].http, timeout=30) as http:
        seen = list[tuple[str, Any]]()
        async for each in events(http):
            seen.append(each)
            if len(seen) == 2:  # while the first turn goes on
                assert where(world) == ["a"]
                turns.gate.set()
        assert (await first.ended()).turns == TURNS
        kinds = [kind for kind, _ in seen]
        assert (kinds[0], kinds[-1], kinds.count("agent_spoke")) == ("started", "finished", TURNS)
        assert seen[-1][1]["finished"]["workflow"]["state"] == "succeeded"
        logged = [event.sequence for event in first.events if not event.HasField("agent_delta")]
        assert [each["sequence"] for kind, each in seen if kind not in ("agent_delta", "agent_speaking")] == [
            sequence for sequence in dict.fromkeys(logged)
        ]
        rest = [each async for each in events(http, after=2)]
        assert [each["sequence"] for _, each in rest] == [
            sequence for sequence in dict.fromkeys(logged) if sequence > 2
        ]
        assert (await http.get(path)).json()["workflow"]["state"] == "succeeded"
    assert len(turns.committed) == len(set(turns.committed)) == TURNS
