"""Forks, snapshots, restores and trims between real processes: exact ledgers, the oracle's numbers, reused KV."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agentmem.kv.ledger import common_length
from agentmem.v1 import agent_pb2, inference_pb2, types_pb2
from tests.oracle import Oracle
from tests.system.shared import SharedStacks, Writer
from tests.system.stack import Client, Stack, Turn, chat
from tests.tiny_hybrids import write_qwen3_next
from tests.tiny_models import write_gemma3, write_llama

ARGUMENTS = {"max_tokens": 8, "top_logprobs": 0, "sampling": types_pb2.Sampling(ignore_eos=True)}
LONG = "The colour of the boat is green. " * 45


@pytest.fixture(scope="module")
def oracle(tiny: Path) -> Oracle:
    return Oracle(tiny)


async def check(stack: Stack, oracle: Oracle, turn: Turn, agent: str = "a") -> list[int]:
    """The turn's log-probabilities are those of a recomputation; the ledger's tokens."""
    token_ids = await tokens(stack, agent)
    wanted = oracle.logprobs_of(token_ids, len(token_ids) - len(turn.token_ids))
    assert token_ids[-len(turn.token_ids) :] == turn.token_ids
    assert np.abs(wanted - np.array(turn.logprobs)).max() < 1e-3
    return token_ids


async def tokens(stack: Stack, agent: str = "a") -> list[int]:
    return list((await stack.ledger(agent)).token_ids)


async def fork(client: Client, new: str, **fields: int) -> agent_pb2.Agent:
    request = agent_pb2.ForkAgentRequest(key=client.key("a"), new_agent_id=new, **fields)  # type: ignore[arg-type]
    return (await client.agents.ForkAgent(request, timeout=30)).agent


async def snapshot(client: Client, name: str) -> None:
    await client.agents.CreateSnapshot(agent_pb2.CreateSnapshotRequest(key=client.key("a"), name=name), timeout=30)


async def restore(client: Client, name: str) -> agent_pb2.Agent:
    request = agent_pb2.RestoreSnapshotRequest(key=client.key("a"), name=name)
    return (await client.agents.RestoreSnapshot(request, timeout=30)).agent


async def restarted(stack: Stack) -> None:
    stack.kill("worker", "store")
    await stack.up()


@pytest.mark.slow
@pytest.mark.kills
async def test_both_branches_of_a_fork_go_on_hot_and_after_a_crash(
    stack: Stack, client: Client, oracle: Oracle
) -> None:
    common = await check(stack, oracle, await client.say("a", LONG, **ARGUMENTS))
    child = await fork(client, "b")
    assert (child.tokens, child.version.version, child.tier) == (len(common), 1, types_pb2.TIER_WARM)
    assert await tokens(stack, "b") == common
    for agent, line in (("b", "Who told you?"), ("a", "And the house?")):
        turn = await client.say(agent, line, **ARGUMENTS)
        assert (turn.match, turn.cached) == ("EXTEND", {"hot": len(common)})
        assert (await check(stack, oracle, turn, agent))[: len(common)] == common
    for agent in ("a", "b"):
        await stack.on_disk(agent)
    await restarted(stack)
    for agent in ("a", "b"):
        before = await tokens(stack, agent)
        turn = await client.say(agent, "Nobody knows.", **ARGUMENTS)
        assert (turn.match, sum(turn.cached.values())) == ("EXTEND", len(before))
        assert turn.cached.keys() == ({"warm"} if agent == "a" else {"warm", "hot"}), "b has the first block from a"
        await check(stack, oracle, turn, agent)


@pytest.mark.slow
@pytest.mark.kills
async def test_a_child_keeps_its_kv_when_the_parent_is_deleted(stack: Stack, client: Client, oracle: Oracle) -> None:
    common = await check(stack, oracle, await client.say("a", LONG, **ARGUMENTS))
    assert (await fork(client, "b")).warm_tokens == len(common), "the fork has waited for the parent's KV"
    await client.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=client.key("a")), timeout=30)
    await restarted(stack)
    turn = await client.say("b", "Who told you?", **ARGUMENTS)
    assert turn.cached == {"warm": len(common)}
    await check(stack, oracle, turn, "b")
    await client.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=client.key("b")), timeout=30)
    assert stack.block_files() == []


@pytest.mark.slow
@pytest.mark.kills
async def test_a_snapshot_is_the_exact_ledger_again_and_its_kv(stack: Stack, client: Client, oracle: Oracle) -> None:
    kept = await check(stack, oracle, await client.say("a", LONG, **ARGUMENTS))
    ledger = await stack.ledger("a")
    await snapshot(client, "before")
    await client.say("a", "Who told you?", **ARGUMENTS)
    for tier in ("hot", "warm"):
        later = await client.agent("a")
        restored = await restore(client, "before")
        assert restored.version.version == later.version.version + 1
        assert await stack.ledger("a") == ledger
        if tier == "warm":
            await restarted(stack)
        turn = await client.say("a", "And the house?", **ARGUMENTS)
        assert (turn.match, turn.cached.keys()) == ("EXTEND", {tier})
        assert sum(turn.cached.values()) >= len(kept), "and what the branch that was left has by chance"
        await check(stack, oracle, turn)


async def prefill(client: Client, *messages: tuple[str, str]) -> None:
    request = inference_pb2.PrefillRequest(key=client.key("a"), messages=chat(*messages))
    await client.inference.Prefill(request, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, write_gemma3], ids=["llama", "gemma3"])
async def test_who_edits_and_returns_finds_all_that_was_there(
    stacks: SharedStacks, write: Callable[[Path], Path]
) -> None:
    """Hot, after a crash, and to a branch that was left two edits ago; the tail of a block and all."""
    oracle = Oracle(stacks.directory(write))
    history = [("user", LONG), ("assistant", "I see."), ("user", LONG + "And?"), ("assistant", "It is green.")]
    async with stacks.using(write, killable=True) as stack:
        client = await stack.client()
        await prefill(client, *history)
        old = await tokens(stack)
        assert len(old) % 256, "it ends inside a block"
        returned = old
        for round_, line in enumerate(("Where is the key?", "And the boat?")):
            await stack.on_disk("a")
            left = await client.turn("a", messages=chat(*history[:2], ("user", f"{round_} times! " * 60)), **ARGUMENTS)
            assert (left.match, left.started.cache.snapshot_version) == ("PARTIAL", 0)
            await check(stack, oracle, left)
            if round_:
                await stack.on_disk("a")
                await restarted(stack)
            probe = agent_pb2.ProbeAgentRequest(key=client.key("a"), messages=chat(*history, ("user", line)))
            probed = (await client.agents.ProbeAgent(probe, timeout=10)).cache
            turn = await client.turn("a", messages=chat(*history, ("user", line)), **ARGUMENTS)
            assert (turn.match, turn.miss) == (("PARTIAL", "DIVERGED") if round_ else ("EXTEND", "UNSPECIFIED"))
            assert turn.started.cache.snapshot_version and probed == turn.started.cache
            assert sum(turn.cached.values()) >= len(old), turn.cached
            returned = await check(stack, oracle, turn)
            assert returned[: len(old)] == old
        listed = await client.agents.ListSnapshots(agent_pb2.ListSnapshotsRequest(key=client.key("a")), timeout=10)
        assert all(each.automatic for each in listed.snapshots) and len(listed.snapshots) == 4


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, write_gemma3, write_qwen3_next], ids=["llama", "gemma3", "qwen3-next"])
async def test_a_fork_of_an_older_state_has_all_that_both_share(stacks: SharedStacks, write: Writer) -> None:
    """A message is edited: hot, and from files after a crash, the fork copies what stands before it in the block.

    A model with windows or states needs a checkpoint besides, and has one at the block's beginning.
    """
    oracle = Oracle(stacks.directory(write))
    async with stacks.using(write, killable=True) as stack:
        client = await stack.client()
        common = await check(stack, oracle, await client.say("a", LONG, **ARGUMENTS))
        assert len(common) % 256 > 32, "its end is well inside a block"
        old = await check(stack, oracle, await client.say("a", "Who told you?", **ARGUMENTS))
        await stack.on_disk("a")
        for tier, agent, line in (("hot", "b", "And the house?"), ("warm", "c", "Nobody knows.")):
            if tier == "warm":
                await restarted(stack)
            await fork(client, agent, at_version=1)
            turn = await client.say(agent, line, **ARGUMENTS)
            ids = await check(stack, oracle, turn, agent)
            assert (turn.match, ids[: len(common)]) == ("EXTEND", common)
            shared = common_length(ids, old) if write is write_llama else 256
            assert write is not write_llama or len(common) <= shared < len(ids)
            assert turn.cached == {tier: shared}
        turn = await client.say("a", "Nobody knows.", **ARGUMENTS)
        assert sum(turn.cached.values()) == len(old), "the old branch has lost nothing"
        assert (await check(stack, oracle, turn))[: len(old)] == old
