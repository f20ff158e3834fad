"""Turns over every door run on the agent's node; what becomes of them where that is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from agentmem import errors
from agentmem.rpcs import rpc_of
from agentmem.v1 import agent_pb2, inference_pb2, inference_pb2_grpc, types_pb2
from gateway.upstream import ChannelWorker
from tests.gateway.cluster.world import World, ask, cluster, turn
from tests.gateway.running import eventually
from tests.gateway.scripted import delta, finished, hello, script, started

ADA = types_pb2.AgentKey(agent_id="ada", model_id="demo")
TRIM = agent_pb2.TrimAgentRequest(key=ADA)
DELETE = agent_pb2.DeleteAgentRequest(key=ADA)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with cluster("a", "b", "c") as running:
        running.says("ada", last_on="b")
        yield running


def asked(world: World, name: str) -> list[str]:
    """The requests that a node's worker got, but for those of its own gateway."""
    kinds = (type(each).__name__.removesuffix("Request") for each in world[name].worker.requests)
    return [kind for kind in kinds if kind != "ListModels"]


@pytest.mark.parametrize("at", ["a", "b"])
async def test_a_turn_over_grpc_runs_where_the_agent_was_last(world: World, at: str) -> None:
    assert (await ask(world, at, turn()))[-1].HasField("finished")
    assert world.turns() == {"a": 0, "b": 1, "c": 0}


async def test_a_turn_over_http_runs_where_the_agent_was_last(world: World) -> None:
    chat = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    async with httpx.AsyncClient(base_url=world["a"].http, headers={"x-agent-id": "ada"}, timeout=30) as http:
        for body in (chat, {**chat, "stream": True}):
            answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200 and ("🌍" in answer.text or "\\ud83c" in answer.text), answer.text
    assert world.turns("ada") == {"a": 0, "b": 2, "c": 0}


async def test_calls_about_an_agent_go_to_its_node_and_others_stay(world: World) -> None:
    """A deletion frees memory on all nodes; an import runs where it was asked for."""
    append = types_pb2.Append(text="x")
    for request in (
        *(agent_pb2.GetAgentRequest(key=ADA), TRIM, DELETE),
        *(inference_pb2.PrefillRequest(key=ADA, append=append), agent_pb2.ListAgentsRequest()),
    ):
        await ask(world, "a", request)
    assert [part.chunk for part in await ask(world, "a", agent_pb2.ExportAgentRequest(key=ADA))] == [b"one", b"two"]
    async with world["a"].channel() as channel:

        async def parts() -> AsyncIterator[Any]:
            yield agent_pb2.ImportAgentRequest(key=ADA)

        await ChannelWorker(channel).upload(rpc_of(agent_pb2.ImportAgentRequest()), parts())
    assert asked(world, "b") == ["GetAgent", "TrimAgent", "DeleteAgent", "EvictAgent", "Prefill", "ExportAgent"]
    assert asked(world, "a") == ["EvictAgent", "ListAgents", "ImportAgent"]


async def test_turns_without_a_name_get_one_and_those_with_one_keep_it(world: World) -> None:
    for request in (turn(), turn(request_id="mine"), turn("")):
        await ask(world, "a", request)
    first, second = (request for request in world["b"].worker.generated if request.key.agent_id)
    assert first.request_id.startswith("node-")
    assert second.request_id == "mine"
    stateless = [r for node in world.nodes.values() for r in node.worker.generated if not r.key.agent_id]
    assert [request.request_id for request in stateless] == [""]


async def test_a_deletion_on_all_models_is_one_on_all_nodes(world: World) -> None:
    """An empty model_id is sent as it is; the other nodes may have had nothing."""
    await ask(world, "a", agent_pb2.DeleteAgentRequest(key=types_pb2.AgentKey(agent_id="ada")))
    sent = []
    for node in world.nodes.values():
        deletions = [each for each in node.worker.requests if isinstance(each, agent_pb2.DeleteAgentRequest)]
        assert deletions and {each.key.model_id for each in deletions} == {""}
        sent += deletions
    assert sum(not each.allow_missing for each in sent) == 1


async def test_a_deletion_that_finds_nothing_leaves_nothing_in_memory(world: World) -> None:
    """As where it is repeated, because the first one waited in vain for another node's files."""
    world["b"].worker.refusals["DeleteAgent"] = errors.NotFound("agent", "ada")
    with pytest.raises(errors.NotFound):
        await ask(world, "a", DELETE)
    assert all("EvictAgent" in asked(world, name) for name in "abc")


async def test_a_deletion_says_who_did_not_answer(world: World) -> None:
    world["c"].worker.refusals["EvictAgent"] = errors.Unavailable("busy")
    with pytest.raises(errors.Unavailable, match="c may still have"):
        await ask(world, "a", DELETE)


async def test_a_node_whose_worker_is_gone_is_passed_over_before_the_turn_begins(world: World) -> None:
    await world["b"].worker.stop()
    assert (await ask(world, "a", turn()))[-1].HasField("finished")
    assert sum(world.turns().values()) == 1


async def test_a_node_that_is_gone_without_a_word_is_passed_over(world: World) -> None:
    await world["b"].gateway.parts.cluster.door.stop(0)  # type: ignore[union-attr]
    assert (await ask(world, "a", turn()))[-1].HasField("finished")
    assert world.turns()["b"] == 0


async def test_a_turn_that_has_begun_is_not_sent_again(world: World) -> None:
    world["b"].worker.script = script((started(), world["b"].vanish))
    with pytest.raises(errors.Unavailable):
        await ask(world, "a", turn())
    assert sum(world.turns().values()) == 1


async def test_a_call_that_must_not_be_repeated_fails_where_its_outcome_is_unknown(world: World) -> None:
    """As where the node is stopped: it may continue, and do what it was sent."""
    changes = [TRIM, DELETE]
    changes += [
        getattr(agent_pb2, f"{each}Request")(key=ADA) for each in ("ForkAgent", "CreateSnapshot", "RestoreSnapshot")
    ]
    world["b"].worker.lost = {"GetAgent", *(rpc_of(each).method.name for each in changes)}
    for change in changes:
        with pytest.raises(errors.Unavailable, match=r"was sent to node 'b'.* outcome is unknown"):
            await ask(world, "a", change)
    assert await ask(world, "a", agent_pb2.GetAgentRequest(key=ADA)) == agent_pb2.GetAgentResponse()
    everywhere = [each for name in "abc" for each in asked(world, name)]
    assert (everywhere.count("TrimAgent"), everywhere.count("GetAgent")) == (1, 2)


async def test_what_a_worker_refuses_comes_through_with_its_details(world: World) -> None:
    world["b"].worker.error = errors.ResourceExhausted("no room", 7)
    with pytest.raises(errors.ResourceExhausted) as refused:
        await ask(world, "a", turn())
    assert (refused.value.message, refused.value.retry_after) == ("no room", 7)


@pytest.mark.parametrize(("given", "tries"), [({}, 2), ({"if_version": 3}, 1), ({"if_revision": bytes(16)}, 1)])
async def test_a_lost_race_is_tried_once_more_unless_the_caller_named_a_version(
    world: World, given: dict[str, Any], tries: int
) -> None:
    again = started(), delta("hi"), finished()
    world["b"].worker.script = script([errors.Aborted("another writer was first")], again)
    if tries == 1:
        with pytest.raises(errors.Aborted):
            await ask(world, "a", turn(**given))
    else:
        await ask(world, "a", turn(**given))
    seen = [request.request_id for request in world["b"].worker.generated]
    assert (len(seen), len(set(seen))) == (tries, 1)


async def test_a_conflict_after_an_attempt_in_doubt_is_no_refusal(world: World) -> None:
    """The first node may have committed the turn, which then is the other writer that the second one sees."""

    world["b"].worker.script = script([world["b"].vanish])
    world["a"].worker.script = world["c"].worker.script = script([errors.Aborted("another writer was first")])
    with pytest.raises(errors.Unavailable, match="may have committed it"):
        await ask(world, "a", turn(if_version=3, request_id="mine"))


async def test_a_client_that_goes_away_ends_the_turn_on_the_other_node(world: World) -> None:
    async def endless(_: Any) -> AsyncIterator[Any]:
        yield started()
        while True:
            yield delta("x")
            await asyncio.sleep(0.01)

    world["b"].worker.script = endless
    async with world["a"].channel() as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(turn())
        await anext(aiter(call))
        call.cancel()
    async with asyncio.timeout(20):
        await world["b"].worker.cancelled.wait()
    await eventually(lambda: world.ledger.nodes["b"].load == 0)


async def test_turns_that_run_are_counted_and_claimed(world: World) -> None:
    go = asyncio.Event()

    world["b"].worker.script = script((started(), go.wait, finished()))
    running = asyncio.create_task(ask(world, "a", turn()))
    await eventually(lambda: [key.agent_id for key in world.ledger.running["b"]] == ["ada"])
    assert world.ledger.nodes["b"].load == 1
    assert world.ledger.nodes["a"].load == 0
    world.says("ada")  # the claim is not known to the ledger yet, but this gateway sent the turn
    world["b"].worker.script = hello
    await ask(world, "a", turn())
    assert world.turns("ada") == {"a": 0, "b": 2, "c": 0}
    go.set()
    await running
    await eventually(lambda: not world.ledger.running["b"])


async def test_abort_finds_the_turn_on_another_node(world: World) -> None:
    for name in "ab":
        world[name].worker.aborts = False
    assert (await ask(world, "a", inference_pb2.AbortRequest(request_id="r"))).aborted
    assert "Abort" in asked(world, "c")


async def test_all_nodes_are_told_hints(world: World) -> None:
    await ask(world, "a", agent_pb2.SetTurnHintsRequest(hints=[agent_pb2.TurnHint(key=ADA, steps=2)]))
    for node in world.nodes.values():
        [told] = [each for each in node.worker.requests if isinstance(each, agent_pb2.SetTurnHintsRequest)]
        assert told.hints[0].key.namespace == "default"


async def test_a_change_that_a_node_has_not_begun_is_made_on_the_next(world: World) -> None:
    """The node has just become unready: its own gateway knows, and the others do not."""
    world["b"].store.says_ready = True
    await eventually(lambda: world["b"].store.heard_ready)
    await world["b"].worker.server.set_serving(False)
    await eventually(lambda: not world["b"].store.heard_ready)
    assert world.ledger.nodes["b"].ready
    await ask(world, "a", TRIM)
    trims = {name: asked(world, name).count("TrimAgent") for name in "abc"}
    assert (trims["b"], sum(trims.values())) == (0, 1)


async def test_a_turn_that_has_answered_and_is_not_committed_is_not_made_again(world: World) -> None:
    world["b"].worker.script = script((started(), delta("hi"), errors.Aborted("another writer was first")))
    with pytest.raises(errors.Aborted):
        await ask(world, "a", turn())
    assert sum(world.turns().values()) == 1
