"""Bad input is refused before any effect; request ids replay; a re-created agent is another one."""

import asyncio
import math
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentmem.channels import connect
from agentmem.errors import InvalidArgument, from_rpc
from agentmem.v1 import agent_pb2, agent_pb2_grpc, inference_pb2, types_pb2
from tests.system.stack import Client, Stack, chat, running

OK: dict[str, Any] = {"prompt": "hello"}


def sampling(**fields: float) -> dict[str, Any]:
    return {**OK, "sampling": types_pb2.Sampling(**fields)}  # type: ignore[arg-type]


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("a", {}, "input"),
    ("a", {"append": types_pb2.Append()}, "append.content"),
    ("a", {"append": types_pb2.Append(text="")}, "append.text"),
    ("", {"append": types_pb2.Append(text="x")}, "append"),
    ("a", {"prompt": ""}, "prompt"),
    ("a", {"messages": types_pb2.Messages()}, "messages"),
    ("a", {"messages": chat(("", "x"))}, "messages.messages[0].role"),
    ("a", {"token_ids": types_pb2.TokenIds()}, "token_ids.ids"),
    ("a", {"token_ids": types_pb2.TokenIds(ids=[1, 10**6])}, "token_ids.ids[1]"),
    ("x" * 257, OK, "key.agent_id"),
    ("😀" * 65, OK, "key.agent_id"),
    ("a", sampling(temperature=-0.1), "sampling.temperature"),
    ("a", sampling(temperature=math.nan), "sampling.temperature"),
    ("a", sampling(top_p=0), "sampling.top_p"),
    ("a", sampling(top_p=math.inf), "sampling.top_p"),
    ("a", sampling(min_p=-1), "sampling.min_p"),
    ("a", sampling(repetition_penalty=0), "sampling.repetition_penalty"),
    ("a", sampling(presence_penalty=3), "sampling.presence_penalty"),
    ("a", sampling(frequency_penalty=math.nan), "sampling.frequency_penalty"),
    ("a", {**OK, "sampling": types_pb2.Sampling(logit_bias={2**32 - 1: 1})}, "sampling.logit_bias[4294967295]"),
    ("a", {**OK, "max_tokens": 0}, "max_tokens"),
    ("a", {**OK, "top_logprobs": 21}, "top_logprobs"),
    ("a", {**OK, "stop": [""]}, "stop[0]"),
    ("a", {**OK, "stop": ["x"] * 17}, "stop"),
    ("a", {**OK, "request_id": "x" * 129}, "request_id"),
    ("a", {**OK, "cache_policy": 77}, "cache_policy"),
]


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value


async def test_bad_input_is_refused_by_field_before_any_effect(stack: Stack, client: Client) -> None:
    computed = await stack.metric("worker", "agentmem_prompt_tokens_total")
    for agent, arguments, field in BAD:
        error = from_rpc(await refused(client.turn(agent, **arguments)))
        assert isinstance(error, InvalidArgument), (field, error)
        assert error.field == field

    prefill = inference_pb2.PrefillRequest(key=client.key(""), prompt="x")
    error = from_rpc(await refused(client.inference.Prefill(prefill)))
    assert isinstance(error, InvalidArgument)
    assert error.field == "key.agent_id"
    for key, field in (
        (types_pb2.AgentKey(namespace="default", agent_id="a"), "key.model_id"),
        (types_pb2.AgentKey(agent_id="a", model_id="tiny"), "key.namespace"),
    ):
        error = from_rpc(await refused(client.inference.Prefill(inference_pb2.PrefillRequest(key=key, prompt="x"))))
        assert isinstance(error, InvalidArgument)
        assert error.field == field

    unknown = inference_pb2.PrefillRequest(
        key=types_pb2.AgentKey(namespace="default", agent_id="a", model_id="gpt-9"), prompt="x"
    )
    missing = await refused(client.inference.Prefill(unknown))
    assert missing.code() is grpc.StatusCode.NOT_FOUND
    assert "tiny, demo" in (missing.details() or "")
    too_long = await refused(client.turn("a", prompt="word " * 6000))
    assert too_long.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "context holds 4096" in (too_long.details() or "")
    unparsed = await refused(client.turn("a", **OK, tool_calls=True))
    assert unparsed.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "no tool parser" in (unparsed.details() or "")
    version = await refused(client.turn("a", **OK, if_version=3))
    assert version.code() is grpc.StatusCode.ABORTED

    listed = await client.agents.ListAgents(agent_pb2.ListAgentsRequest(namespace="default"))
    assert not listed.agents, "nothing was created"
    assert not stack.block_files()
    assert await stack.metric("worker", "agentmem_prompt_tokens_total") == computed


async def test_request_id_replays_and_refuses_other_arguments(stack: Stack, client: Client) -> None:
    first = await client.say("a", "hello 😀", request_id="r1", max_tokens=7, top_logprobs=2)
    again = await client.say("a", "hello 😀", request_id="r1", max_tokens=7, top_logprobs=2)
    assert again.finished.replayed
    assert not first.finished.replayed
    assert (again.text, again.token_ids, again.logprobs) == (first.text, first.token_ids, first.logprobs)
    assert again.finished.version == first.finished.version
    other = from_rpc(await refused(client.say("a", "hello", request_id="r1", max_tokens=7)))
    assert isinstance(other, InvalidArgument)
    assert other.field == "request_id"
    second = await client.say("a", "hello 😀", request_id="r2", max_tokens=7, top_logprobs=2)
    assert second.finished.version.version == 2
    old = await client.say("a", "hello 😀", request_id="r1", max_tokens=7, top_logprobs=2)
    assert old.finished.replayed, "an older turn is replayed too"
    assert len((await stack.ledger("a")).turns) == 2


async def test_a_turn_can_be_bound_to_a_state(stack: Stack, client: Client) -> None:
    first = (await client.say("a", "hello", max_tokens=3)).finished.version
    other = await refused(client.say("a", "hello", max_tokens=3, if_version=1, if_revision=bytes(16)))
    assert other.code() is grpc.StatusCode.ABORTED and "backup" in (other.details() or "")
    bound = {"if_version": 1, "if_revision": first.revision}
    second = (await client.say("a", "hello", max_tokens=3, **bound)).finished.version
    assert (second.uid, second.version) == (first.uid, 2) and second.revision != first.revision
    moved = await refused(client.say("a", "hello", max_tokens=3, if_revision=first.revision))
    assert moved.code() is grpc.StatusCode.ABORTED


@pytest.mark.slow
async def test_kill_between_fsync_and_answer_replays(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", "after_commit")
    monkeypatch.setenv("FAULT_DONE", str(tmp_path / "done"))
    async with running(f"tiny={tiny}", worker_module="tests.system.faulty_worker") as stack:
        client = await stack.client()
        error = await refused(client.say("a", "hello", request_id="r", max_tokens=9))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
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
    await client.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=client.key("a")))
    assert (await refused(client.agent("a"))).code() is grpc.StatusCode.NOT_FOUND
    reborn = await client.say("a", "hello", max_tokens=5)
    assert (reborn.match, reborn.cached) == ("NEW", {})
    assert reborn.finished.version.uid != first.version.uid

    # Behind the worker's back: it still holds the hot state of the uid that is gone.
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


async def test_read_only_and_recompute_policies(stack: Stack, client: Client) -> None:
    await client.say("a", "The boat is green. " * 10, max_tokens=5)
    before = await stack.ledger("a")
    arguments = {"max_tokens": 6, "top_logprobs": 0}
    look = await client.say("a", "And now?", cache_policy=inference_pb2.CACHE_POLICY_READ_ONLY, **arguments)
    assert look.cached == {"hot": len(before.token_ids)}
    assert not look.finished.durable
    assert await stack.ledger("a") == before
    turn = await client.say("a", "And now?", cache_policy=inference_pb2.CACHE_POLICY_RECOMPUTE, **arguments)
    assert turn.cached == {}
    assert turn.token_ids == look.token_ids
    assert turn.logprobs == pytest.approx(look.logprobs, abs=1e-3)
    after = await client.say("a", "More", max_tokens=3)
    assert after.cached == {"hot": turn.started.cache.prompt_tokens + 6}


async def test_hostile_agent_ids_each_have_their_memory(stack: Stack, client: Client) -> None:
    files = {path.name for path in stack.root.iterdir()}
    ids = ["../../etc/passwd", "a\x00b", "CON", "trailing.", "CaSe", "case", "😀" * 64, "a/b", " ", "%2e%2e"]
    for number, agent in enumerate(ids):
        await client.say(agent, f"I am number {number}.", max_tokens=2)
    listed = await client.agents.ListAgents(agent_pb2.ListAgentsRequest(namespace="default"))
    assert {agent.key.agent_id for agent in listed.agents} == set(ids)
    for number, agent in enumerate(ids):
        assert f"I am number {number}.".encode() in (await stack.ledger(agent)).text
    assert {path.name for path in stack.root.iterdir()} == files >= {"data", "run"}
