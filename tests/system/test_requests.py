"""Request ids replay; a re-created agent is another one."""

import asyncio
from pathlib import Path

import grpc
import pytest

from agentmem.channels import connect
from agentmem.errors import InvalidArgument, from_rpc
from agentmem.v1 import agent_pb2, agent_pb2_grpc, types_pb2
from tests.system.client import Client, refused
from tests.system.stack import Stack, running


async def test_request_id_replays_and_refuses_other_arguments(stack: Stack, client: Client) -> None:
    first = await client.say("a", "hello 😀", request_id="r1", max_tokens=7, top_logprobs=2)
    again = await client.say("a", "hello 😀", request_id="r1", max_tokens=7, top_logprobs=2)
    assert again.finished.replayed
    assert not first.finished.replayed
    assert (again.text, again.token_ids, again.logprobs) == (first.text, first.token_ids, first.logprobs)
    assert again.finished.version == first.finished.version
    other = client.say("a", "hello", request_id="r1", max_tokens=7)
    told = from_rpc(await refused(other, grpc.StatusCode.INVALID_ARGUMENT))
    assert isinstance(told, InvalidArgument) and told.field == "request_id"
    second = await client.say("a", "hello 😀", request_id="r2", max_tokens=7, top_logprobs=2)
    assert second.finished.version.version == 2
    old = await client.say("a", "hello 😀", request_id="r1", max_tokens=7, top_logprobs=2)
    assert old.finished.replayed, "an older turn is replayed too"
    assert len((await stack.ledger("a")).turns) == 2


async def test_a_turn_can_be_bound_to_a_state(stack: Stack, client: Client) -> None:
    first = (await client.say("a", "hello", max_tokens=3)).finished.version
    other = client.say("a", "hello", max_tokens=3, if_version=1, if_revision=bytes(16))
    await refused(other, grpc.StatusCode.ABORTED, "backup")
    bound = {"if_version": 1, "if_revision": first.revision}
    second = (await client.say("a", "hello", max_tokens=3, **bound)).finished.version
    assert (second.uid, second.version) == (first.uid, 2) and second.revision != first.revision
    await refused(client.say("a", "hello", max_tokens=3, if_revision=first.revision), grpc.StatusCode.ABORTED)


@pytest.mark.slow
async def test_kill_between_fsync_and_answer_replays(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", "after_commit")
    monkeypatch.setenv("FAULT_DONE", str(tmp_path / "done"))
    async with running(f"tiny={tiny}", worker_module="tests.system.faulty_worker") as stack:
        client = await stack.client()
        await refused(client.say("a", "hello", request_id="r", max_tokens=9), grpc.StatusCode.UNAVAILABLE)
        assert stack.processes["worker"].wait(10) == -9
        committed = await stack.ledger("a")
        await stack.up("worker")
        turn = await client.say("a", "hello", request_id="r", max_tokens=9)
        assert turn.finished.replayed
        assert list(committed.token_ids[-len(turn.token_ids) :]) == turn.token_ids
        assert await stack.ledger("a") == committed, "the retry added nothing"


async def test_recreated_agent_never_meets_its_predecessors_state(stack: Stack, client: Client) -> None:
    await client.say("a", "The secret is walnut. " * 20, max_tokens=5)
    async with asyncio.timeout(20):  # the engine settles after the turn's end
        while (first := await client.agent("a")).tier != types_pb2.TIER_HOT:
            await asyncio.sleep(0.02)
    await client.delete("a")
    await refused(client.agent("a"), grpc.StatusCode.NOT_FOUND)
    reborn = await client.say("a", "hello", max_tokens=5)
    assert (reborn.match, reborn.cached) == ("NEW", {})
    assert reborn.finished.version.uid != first.version.uid

    # The worker is not told: it still holds the hot state of the uid that is gone.
    behind = connect(f"unix:{stack.run}/store.sock")
    await agent_pb2_grpc.AgentServiceStub(behind).DeleteAgent(agent_pb2.DeleteAgentRequest(key=client.key("a")))
    await behind.close(None)
    third = await client.say("a", "hello", max_tokens=5)
    assert (third.match, third.cached) == ("NEW", {})
    assert third.finished.version.uid != reborn.finished.version.uid
    assert third.finished.version.version == 1


async def test_two_turns_at_once_are_one_after_the_other(stack: Stack, client: Client) -> None:
    turns = await asyncio.gather(*(client.say("a", f"number {n}", max_tokens=8) for n in range(6)))
    assert sorted(turn.finished.version.version for turn in turns) == [1, 2, 3, 4, 5, 6]
    ledger = await stack.ledger("a")
    assert [place.version for place in ledger.turns] == [1, 2, 3, 4, 5, 6]
    assert all(f"number {n}".encode() in ledger.text for n in range(6))
