"""Forks, edits and returns between real processes: exact ledgers, the oracle's numbers, reused KV."""

import pytest

from agentmem.v1 import types_pb2
from tests.oracle import Oracle
from tests.system.client import chat
from tests.system.recomputed import ARGUMENTS, LONG, check
from tests.system.shared import SharedStacks, Writer
from tests.system.stack import Stack
from tests.tiny_models import write_gemma3, write_llama

pytestmark = pytest.mark.slow


async def restarted(stack: Stack) -> None:
    stack.kill("worker", "store")
    await stack.up()


async def test_both_branches_of_a_fork_go_on_hot_and_after_a_crash_and_one_without_the_other(
    stacks: SharedStacks,
) -> None:
    oracle = Oracle(stacks.directory(write_llama))
    async with stacks.using(write_llama, killable=True) as stack:
        client = await stack.client()
        common = await check(stack, oracle, await client.say("a", LONG, **ARGUMENTS))
        child = await client.fork("a", "b")
        assert (child.tokens, child.version.version, child.tier) == (len(common), 1, types_pb2.TIER_WARM)
        assert child.warm_tokens == len(common), "the fork has waited for the parent's KV"
        assert list((await stack.ledger("b")).token_ids) == common
        ends = {}
        for agent, line in (("b", "Who told you?"), ("a", "And the house?")):
            turn = await client.say(agent, line, **ARGUMENTS)
            assert (turn.match, turn.cached) == ("EXTEND", {"hot": len(common)})
            ends[agent] = await check(stack, oracle, turn, agent)
            assert ends[agent][: len(common)] == common
        for agent in ends:
            await stack.on_disk(agent)
        await restarted(stack)
        for agent, tiers in (("a", {"warm"}), ("b", {"warm", "hot"})):  # b has the first block from a
            turn = await client.say(agent, "Nobody knows.", **ARGUMENTS)
            assert (turn.match, sum(turn.cached.values()), turn.cached.keys()) == ("EXTEND", len(ends[agent]), tiers)
            ends[agent] = await check(stack, oracle, turn, agent)
        await stack.on_disk("b")
        await client.delete("a")
        await restarted(stack)
        turn = await client.say("b", "Who told you?", **ARGUMENTS)
        assert turn.cached == {"warm": len(ends["b"])}
        await check(stack, oracle, turn, "b")
        await client.delete("b")
        assert stack.block_files() == []


@pytest.mark.parametrize("write", [write_llama, write_gemma3], ids=["llama", "gemma3"])
async def test_who_edits_and_returns_finds_all_that_was_there(stacks: SharedStacks, write: Writer) -> None:
    """Hot, after a crash, and to a branch that was left two edits ago; the tail of a block and all."""
    oracle = Oracle(stacks.directory(write))
    history = [("user", LONG), ("assistant", "I see."), ("user", LONG + "And?"), ("assistant", "It is green.")]
    async with stacks.using(write, killable=True) as stack:
        client = await stack.client()
        await client.prefill("a", messages=chat(*history))
        old = list((await stack.ledger("a")).token_ids)
        assert len(old) % 256, "it ends inside a block"
        for round_, line in enumerate(("Where is the key?", "And the boat?")):
            await stack.on_disk("a")
            left = await client.turn("a", messages=chat(*history[:2], ("user", f"{round_} times! " * 60)), **ARGUMENTS)
            assert (left.match, left.started.cache.snapshot_version) == ("PARTIAL", 0)
            await check(stack, oracle, left)
            if round_:
                await stack.on_disk("a")
                await restarted(stack)
            probed = await client.probe("a", messages=chat(*history, ("user", line)))
            turn = await client.turn("a", messages=chat(*history, ("user", line)), **ARGUMENTS)
            assert (turn.match, turn.miss) == (("PARTIAL", "DIVERGED") if round_ else ("EXTEND", "UNSPECIFIED"))
            assert turn.started.cache.snapshot_version and probed == turn.started.cache
            assert sum(turn.cached.values()) >= len(old), turn.cached
            assert (await check(stack, oracle, turn))[: len(old)] == old
        kept = await client.snapshots("a")
        assert all(each.automatic for each in kept) and len(kept) == 4
