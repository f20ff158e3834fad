"""Models with sliding windows: right from memory, and right after a restart, when they cannot resume from disk yet."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agentmem.v1 import types_pb2
from tests.oracle import Oracle
from tests.system.stack import Stack, Turn, running
from tests.tiny_models import write_gemma3, write_gpt_oss


async def check(stack: Stack, oracle: Oracle, turn: Turn) -> int:
    """The turn's log-probabilities are those of a recomputation; the ledger's length."""
    token_ids = list((await stack.ledger("a")).token_ids)
    wanted = oracle.logprobs_of(token_ids, len(token_ids) - len(turn.token_ids))
    assert np.abs(wanted - np.array(turn.logprobs)).max() < 1e-3
    return len(token_ids)


@pytest.mark.parametrize("write", [write_gemma3, write_gpt_oss], ids=["gemma3", "gpt_oss"])
async def test_hybrid_models_are_right_hot_and_after_a_restart(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    directory = write(tmp_path / "m")
    oracle = Oracle(directory)
    arguments = {"max_tokens": 8, "top_logprobs": 0, "sampling": types_pb2.Sampling(ignore_eos=True)}
    async with running(f"tiny={directory}") as stack:
        client = await stack.client()
        first = await client.say("a", "The colour of the boat is green. " * 45, **arguments)
        tokens = await check(stack, oracle, first)
        assert tokens > 64 + 256, "longer than what a sliding layer keeps"
        hot = await client.say("a", "Who told you?", **arguments)
        assert hot.cached == {"hot": tokens}
        tokens = await check(stack, oracle, hot)
        far_back = await client.turn("a", token_ids=types_pb2.TokenIds(ids=[0, *range(3, 40)]), **arguments)
        assert (far_back.match, far_back.cached) == ("DIVERGE", {})
        await check(stack, oracle, far_back)
        stack.kill("worker")
        await stack.up("worker")
        after = await client.say("a", "And now?", **arguments)
        assert (after.match, after.cached, after.miss) == ("EXTEND", {}, "NOT_TRIMMABLE")
        await check(stack, oracle, after)
        assert not stack.block_files()
