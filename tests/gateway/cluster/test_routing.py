"""Turns over every door run on the agent's node; what becomes of them where that is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest

from agentmem import errors
from agentmem.v1 import agent_pb2, agent_pb2_grpc, inference_pb2, types_pb2
from tests.gateway.cluster.world import World, cluster, eventually, inference
from tests.gateway.scripted import delta, finished, hello, started


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with cluster("a", "b", "c") as running:
        yield running


def turn(agent: str = "", **more: Any) -> inference_pb2.GenerateRequest:
    """A turn on the demo model."""
    key = types_pb2.AgentKey(agent_id=agent, model_id=more.pop("model", "demo"))
    return inference_pb2.GenerateRequest(key=key, prompt="hi", **more)


async def generate(world: World, at: str, request: inference_pb2.GenerateRequest) -> list[Any]:
    """The events of a turn that is asked for at a node."""
    async with world[at].channel() as channel:
        return [event async for event in inference(channel).Generate(request)]


@pytest.mark.parametrize("at", ["a", "b"])
async def test_a_turn_over_grpc_runs_where_the_agent_was_last(world: World, at: str) -> None:
    world.says("ada", last_on="b")
    events = await generate(world, at, turn("ada"))
    assert events[-1].HasField("finished")
    assert world.turns() == {"a": 0, "b": 1, "c": 0}


async def test_a_running_turn_goes_before_the_last_holder(world: World) -> None:
    world.says("ada", running_on="c", last_on="b")
    await generate(world, "a", turn("ada"))
    assert world.turns() == {"a": 0, "b": 0, "c": 1}


async def test_an_agent_that_is_nowhere_has_the_same_home_for_all(world: World) -> None:
    for at in "abc":
        await generate(world, at, turn("new-agent"))
    assert sorted(world.turns().values()) == [0, 0, 3]


async def test_every_dialect_over_http(world: World) -> None:
    world.says("ada", last_on="b")
    chat = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    async with httpx.AsyncClient(base_url=world["a"].http, headers={"x-agent-id": "ada"}, timeout=30) as http:
        for path, body in (
            ("/v1/chat/completions", chat),
            ("/v1/completions", {"model": "demo", "prompt": "hi"}),
            ("/v1/responses", {"model": "demo", "input": "hi"}),
            ("/v1/messages", chat),
            ("/v1/chat/completions", {**chat, "stream": True}),
        ):
            answer = await http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            assert "🌍" in answer.text or "\\ud83c" in answer.text
    assert world.turns("ada") == {"a": 0, "b": 5, "c": 0}


async def test_calls_about_an_agent_go_to_its_node_and_others_stay(world: World) -> None:
    world.says("ada", last_on="c")
    key = types_pb2.AgentKey(agent_id="ada", model_id="demo")
    async with world["a"].channel() as channel:
        agents = agent_pb2_grpc.AgentServiceStub(channel)
        await agents.GetAgent(agent_pb2.GetAgentRequest(key=key))
        await agents.TrimAgent(agent_pb2.TrimAgentRequest(key=key))
        await agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=key))
        exported = [part.chunk async for part in agents.ExportAgent(agent_pb2.ExportAgentRequest(key=key))]
        parts = [agent_pb2.ImportAgentRequest(key=key), agent_pb2.ImportAgentRequest(chunk=b"x")]
        await agents.ImportAgent(iter(parts))
        await inference(channel).Prefill(inference_pb2.PrefillRequest(key=key, append=types_pb2.Append(text="x")))
        await agents.ListAgents(agent_pb2.ListAgentsRequest())
    assert exported == [b"one", b"two"]
    asked = [type(request).__name__ for request in world["c"].worker.requests if not _looks(request)]
    assert asked == [
        "GetAgentRequest", "TrimAgentRequest", "DeleteAgentRequest", "EvictAgentRequest", "ExportAgentRequest",
        "PrefillRequest",
    ]  # fmt: skip
    here = [type(each).__name__ for each in world["a"].worker.requests if not _looks(each)]
    assert here == [  # what a deletion leaves in memory goes on all nodes; an import runs where it was asked for
        "EvictAgentRequest", "ImportAgentRequest", "ImportAgentRequest", "ListAgentsRequest",
    ]  # fmt: skip


def _looks(request: Any) -> bool:
    return type(request).__name__ == "ListModelsRequest"


async def test_turns_without_a_name_get_one_and_those_with_one_keep_it(world: World) -> None:
    world.says("ada", last_on="b")
    await generate(world, "a", turn("ada"))
    await generate(world, "a", turn("ada", request_id="mine"))
    await generate(world, "a", turn())
    first, second = (request for request in world["b"].worker.generated if request.key.agent_id)
    assert first.request_id.startswith("node-")
    assert second.request_id == "mine"
    stateless = [r for node in world.nodes.values() for r in node.worker.generated if not r.key.agent_id]
    assert [request.request_id for request in stateless] == [""]


async def test_a_deletion_on_all_models_is_one_on_all_nodes(world: World) -> None:
    """An empty model_id is no default here: it is sent as it is, and what others have in memory is deleted likewise."""
    key = types_pb2.AgentKey(agent_id="ada")
    async with world["a"].channel() as channel:
        agents = agent_pb2_grpc.AgentServiceStub(channel)
        await agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=key))
    for node in world.nodes.values():
        asked = [each for each in node.worker.requests if isinstance(each, agent_pb2.DeleteAgentRequest)]
        assert asked and {each.key.model_id for each in asked} == {""}
    first = [each for node in world.nodes.values() for each in node.worker.requests if not _looks(each)]
    assert sum(not each.allow_missing for each in first) == 1, "the others may have had nothing of it"


async def test_a_deletion_that_finds_nothing_leaves_nothing_in_memory(world: World) -> None:
    """As where it is repeated, because the first one waited in vain for another node's files."""
    world.says("ada", last_on="b")
    world["b"].worker.refusals["DeleteAgent"] = errors.NotFound("agent", "ada")
    key = types_pb2.AgentKey(agent_id="ada", model_id="demo")
    async with world["a"].channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await agent_pb2_grpc.AgentServiceStub(channel).DeleteAgent(agent_pb2.DeleteAgentRequest(key=key))
    assert missing.value.code() is grpc.StatusCode.NOT_FOUND
    for node in world.nodes.values():
        assert [each for each in node.worker.requests if isinstance(each, agent_pb2.EvictAgentRequest)], node.name


async def test_a_deletion_says_who_did_not_answer(world: World) -> None:
    world["c"].worker.refusals["EvictAgent"] = errors.Unavailable("busy")
    key = types_pb2.AgentKey(agent_id="ada", model_id="demo")
    async with world["a"].channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await agent_pb2_grpc.AgentServiceStub(channel).DeleteAgent(agent_pb2.DeleteAgentRequest(key=key))
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE and "c may still have" in (failed.value.details() or "")


async def test_a_node_whose_worker_is_gone_is_passed_over_before_the_turn_begins(world: World) -> None:
    world.says("ada", last_on="b")
    await world["b"].worker.stop()
    events = await generate(world, "a", turn("ada"))
    assert events[-1].HasField("finished")
    assert sum(world.turns().values()) == 1


async def test_a_node_that_is_gone_without_a_word_is_passed_over(world: World) -> None:
    world.says("ada", last_on="b")
    await world["b"].gateway.parts.cluster.door.stop(0)  # type: ignore[union-attr]
    events = await generate(world, "a", turn("ada"))
    assert events[-1].HasField("finished")
    assert world.turns()["b"] == 0


async def test_what_was_sent_and_may_have_been_done_is_not_sent_again(world: World) -> None:
    world.says("ada", last_on="b")

    async def dies(_: Any) -> AsyncIterator[Any]:
        yield started()
        await world["b"].vanish()

    world["b"].worker.script = dies
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await generate(world, "a", turn("ada"))
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert errors.from_rpc(failed.value).details()
    assert sum(world.turns().values()) == 1


async def test_a_call_that_must_not_be_repeated_fails_where_its_outcome_is_unknown(world: World) -> None:
    world.says("ada", last_on="b")
    world["b"].worker.lost = {"TrimAgent", "GetAgent"}
    key = types_pb2.AgentKey(agent_id="ada", model_id="demo")
    async with world["a"].channel() as channel:
        agents = agent_pb2_grpc.AgentServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await agents.TrimAgent(agent_pb2.TrimAgentRequest(key=key))
        read = await agents.GetAgent(agent_pb2.GetAgentRequest(key=key))
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert read == agent_pb2.GetAgentResponse()
    asked = [type(each).__name__ for node in world.nodes.values() for each in node.worker.requests if not _looks(each)]
    assert sorted(asked) == ["GetAgentRequest", "GetAgentRequest", "TrimAgentRequest"]


@pytest.mark.parametrize(
    ("name", "request_type"),
    [
        ("DeleteAgent", agent_pb2.DeleteAgentRequest),
        ("TrimAgent", agent_pb2.TrimAgentRequest),
        ("ForkAgent", agent_pb2.ForkAgentRequest),
        ("CreateSnapshot", agent_pb2.CreateSnapshotRequest),
        ("RestoreSnapshot", agent_pb2.RestoreSnapshotRequest),
    ],
)
async def test_a_change_whose_outcome_is_unknown_names_its_node(world: World, name: str, request_type: Any) -> None:
    """As where the node is stopped: it may continue, and do what it was sent."""
    world.says("ada", last_on="b")
    world["b"].worker.lost = {name}
    key = types_pb2.AgentKey(agent_id="ada", model_id="demo")
    async with world["a"].channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await getattr(agent_pb2_grpc.AgentServiceStub(channel), name)(request_type(key=key))
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    said = failed.value.details() or ""
    assert f"{name} was sent to node 'b'" in said and "outcome is unknown" in said


async def test_what_a_worker_refuses_comes_through_with_its_details(world: World) -> None:
    world.says("ada", last_on="b")
    world["b"].worker.error = errors.ResourceExhausted("no room", 7)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await generate(world, "a", turn("ada"))
    ours = errors.from_rpc(refused.value)
    assert isinstance(ours, errors.ResourceExhausted)
    assert (ours.message, ours.retry_after) == ("no room", 7)


@pytest.mark.parametrize(("given", "tries"), [({}, 2), ({"if_version": 3}, 1), ({"if_revision": bytes(16)}, 1)])
async def test_a_lost_race_is_tried_once_more_unless_the_caller_named_a_version(
    world: World, given: dict[str, Any], tries: int
) -> None:
    world.says("ada", last_on="b")
    seen: list[str] = []

    async def loses_once(request: inference_pb2.GenerateRequest) -> AsyncIterator[Any]:
        seen.append(request.request_id)
        if len(seen) == 1:
            raise errors.Aborted("another writer was first")
        async for event in hello(request):
            yield event

    world["b"].worker.script = loses_once
    if tries == 1:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await generate(world, "a", turn("ada", **given))
        assert refused.value.code() is grpc.StatusCode.ABORTED
    else:
        await generate(world, "a", turn("ada", **given))
    assert len(seen) == tries
    assert len(set(seen)) == 1


async def test_a_conflict_after_an_attempt_in_doubt_is_no_refusal(world: World) -> None:
    """The first node may have committed the turn, which then is the other writer that the second one sees."""
    world.says("ada", last_on="b")

    async def dies(_: Any) -> AsyncIterator[Any]:
        await world["b"].vanish()
        yield

    async def conflicts(_: Any) -> AsyncIterator[Any]:
        raise errors.Aborted("another writer was first")
        yield

    world["b"].worker.script = dies
    world["a"].worker.script = world["c"].worker.script = conflicts
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await generate(world, "a", turn("ada", if_version=3, request_id="mine"))
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "may have committed it" in (failed.value.details() or "")


async def test_a_client_that_goes_away_ends_the_turn_on_the_other_node(world: World) -> None:
    world.says("ada", last_on="b")

    async def endless(_: Any) -> AsyncIterator[Any]:
        yield started()
        while True:
            yield delta("x")
            await asyncio.sleep(0.01)

    world["b"].worker.script = endless
    async with world["a"].channel() as channel:
        call = inference(channel).Generate(turn("ada"))
        await anext(aiter(call))
        call.cancel()
    async with asyncio.timeout(20):
        await world["b"].worker.cancelled.wait()
    await eventually(lambda: world.ledger.nodes["b"].load == 0)


async def test_turns_that_run_are_counted_and_claimed(world: World) -> None:
    world.says("ada", last_on="b")
    go = asyncio.Event()

    async def waits(_: Any) -> AsyncIterator[Any]:
        yield started()
        await go.wait()
        yield finished()

    world["b"].worker.script = waits
    running = asyncio.create_task(generate(world, "a", turn("ada")))
    await eventually(lambda: [key.agent_id for key in world.ledger.running["b"]] == ["ada"])
    assert world.ledger.nodes["b"].load == 1
    assert world.ledger.nodes["a"].load == 0
    world.says("ada")  # the claim is not known to the ledger yet, but this gateway sent the turn
    world["b"].worker.script = hello
    await generate(world, "a", turn("ada"))
    assert world.turns("ada") == {"a": 0, "b": 2, "c": 0}
    go.set()
    await running
    await eventually(lambda: not world.ledger.running["b"])


async def test_abort_finds_the_turn_on_another_node(world: World) -> None:
    for name in "ab":
        world[name].worker.aborts = False
    async with world["a"].channel() as channel:
        answer = await inference(channel).Abort(inference_pb2.AbortRequest(request_id="r"))
    assert answer.aborted
    assert any(isinstance(request, inference_pb2.AbortRequest) for request in world["c"].worker.requests)


async def test_all_nodes_are_told_hints(world: World) -> None:
    hint = agent_pb2.TurnHint(key=types_pb2.AgentKey(agent_id="ada", model_id="demo"), steps=2)
    async with world["a"].channel() as channel:
        await agent_pb2_grpc.AgentServiceStub(channel).SetTurnHints(agent_pb2.SetTurnHintsRequest(hints=[hint]))
    for node in world.nodes.values():
        [told] = [each for each in node.worker.requests if isinstance(each, agent_pb2.SetTurnHintsRequest)]
        assert told.hints[0].key.namespace == "default"


async def has_just_become_unready(world: World, name: str) -> None:
    """Its own gateway knows, and the others do not."""
    world[name].store.says_ready = True
    await eventually(lambda: world[name].store.heard_ready)
    await world[name].worker.server.set_serving(False)
    await eventually(lambda: not world[name].store.heard_ready)
    assert world.ledger.nodes[name].ready


async def test_a_change_that_a_node_has_not_begun_is_made_on_the_next(world: World) -> None:
    world.says("ada", last_on="b")
    await has_just_become_unready(world, "b")
    key = types_pb2.AgentKey(agent_id="ada", model_id="demo")
    async with world["a"].channel() as channel:
        await agent_pb2_grpc.AgentServiceStub(channel).TrimAgent(agent_pb2.TrimAgentRequest(key=key))
    trims = {
        name: sum(isinstance(each, agent_pb2.TrimAgentRequest) for each in node.worker.requests)
        for name, node in world.nodes.items()
    }
    assert (trims["b"], sum(trims.values())) == (0, 1)


async def test_a_turn_that_has_answered_and_is_not_committed_is_not_made_again(world: World) -> None:
    world.says("ada", last_on="b")

    async def loses_at_the_end(_: Any) -> AsyncIterator[Any]:
        yield started()
        yield delta("hi")
        raise errors.Aborted("another writer was first")

    world["b"].worker.script = loses_at_the_end
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await generate(world, "a", turn("ada"))
    assert refused.value.code() is grpc.StatusCode.ABORTED
    assert sum(world.turns().values()) == 1
