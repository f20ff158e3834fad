"""The pool under load, in a real worker: many agents in little memory, and what happens when it is full.

With AGENTMEM_FULL_MATRIX=1 there are a thousand turns of forty agents, else 60 of twelve, which are longer.
"""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from agentmem.v1 import types_pb2
from tests.full_matrix import FULL
from tests.oracle import Oracle
from tests.system.recomputed import ARGUMENTS, check
from tests.system.stack import Stack, running
from tests.tiny_hybrids import (
    write_falcon_h1,
    write_granite4,
    write_jamba,
    write_lfm2,
    write_nemotron_h,
    write_qwen3_5,
    write_qwen3_next,
)
from tests.tiny_models import write_llama
from tests.tiny_own_attention import write_deepseek32, write_kimi_linear, write_llama4
from tests.tiny_states import write_mamba2

AGENTS, ROUNDS, REPEATED = (40, 25, 1) if FULL else (12, 5, 8)
"""How many agents take how many turns, of how many sentences: in the end each has four blocks."""
BYTES = {write_llama: (320, 0), write_qwen3_next: (320, 38_912)}
"""A token's KV in float32, and a checkpoint."""
if FULL:
    BYTES |= {
        write_lfm2: (192, 1_024),
        write_granite4: (192, 20_224),
        write_nemotron_h: (320, 20_224),
        write_falcon_h1: (320, 20_224),
        write_jamba: (192, 19_456),
        write_kimi_linear: (160, 41_984),
        write_qwen3_5: (320, 38_912),
        write_llama4: (160, 6 * 64 * 640),
        write_deepseek32: (320, 0),
        write_mamba2: (0, 11_648),
    }
TURNS = 4
"""At once."""
ARRAYS = TURNS * 1024 * 2 * 2 * 2 * 64 * 4
"""Bytes of K and V of their tokens as arrays: layers, K and V, heads, width, float32."""
PLACES = 6 + TURNS
"""Agents' places in a pool where each turn has another checkpoint beside the agent's."""
ROUNDING = PLACES * 4 * 2 * 4096
"""Bytes that arrays of so many states may be too large: MLX reuses freed buffers of up to two more pages."""
IGNORE_EOS = types_pb2.Sampling(ignore_eos=True)


async def memory(stack: Stack, kind: str) -> float:
    return await stack.metric("worker", "agentmem_mlx_memory_bytes", kind=kind)


async def settled(stack: Stack, agents: Iterable[str]) -> None:
    """Wait until these agents' KV is on disk, so that only the pool holds memory."""
    for agent in agents:
        await stack.on_disk(agent)
    before = -1.0
    while (written := await stack.metric("worker", "agentmem_cache_store_seconds_count")) != before:
        before = written
        await asyncio.sleep(0.3)


@pytest.mark.essential("memory for KV is bounded")
@pytest.mark.slow("qwen3_next")
@pytest.mark.parametrize("write", BYTES, ids=[write.__name__.removeprefix("write_") for write in BYTES])
async def test_turns_of_many_agents_in_a_pool_for_a_few(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    """Memory ends where it began, and the worker, which checks its pool whenever it is idle, is still there.

    While turns run, their K and V are arrays, too, which are made of what is on disk.
    """
    directory, (token, checkpoint) = write(tmp_path / "m"), BYTES[write]
    places = PLACES if checkpoint else 6
    pool_bytes = places * (1024 * token + checkpoint)
    flags = ("--pool-bytes", str(pool_bytes), "--typical-tokens", "1024")
    async with running(f"tiny={directory}", worker_flags=flags) as stack:
        client = await stack.client()
        turns = {f"agent {n}": 0 for n in range(AGENTS)}
        restored = 0

        async def round_of_turns(agents: list[str]) -> None:
            nonlocal restored
            for agent in agents:
                text = f"{agent}, number {turns[agent]}. " * REPEATED
                turn = await client.say(agent, text, max_tokens=3, sampling=IGNORE_EOS)
                assert turn.finished.durable
                assert turn.match == ("EXTEND" if turns[agent] else "NEW")
                assert turn.started.cache.prompt_tokens - sum(turn.cached.values()) < 300
                turns[agent] += 1
                restored += "warm" in turn.cached

        names = list(turns)
        await asyncio.gather(*(round_of_turns(names[n::TURNS]) for n in range(TURNS)))
        await settled(stack, names)
        begin, peak = await memory(stack, "active"), await memory(stack, "peak")
        for _ in range(ROUNDS - 1):
            await asyncio.gather(*(round_of_turns(names[n::TURNS]) for n in range(TURNS)))
        await settled(stack, names)
        assert sum(turns.values()) == AGENTS * ROUNDS
        assert await memory(stack, "active") <= begin + (ROUNDING if checkpoint else 4096)
        assert await memory(stack, "peak") < peak + 2 * ARRAYS
        used = await stack.metric("worker", "agentmem_pool_blocks", state="used")
        free = await stack.metric("worker", "agentmem_pool_blocks", state="free")
        assert used + free == places * (4 if token else 16), "blocks"
        hot = await stack.metric("worker", "agentmem_cache_agents", tier="hot")
        assert TURNS <= hot <= places
        evicted = await stack.metric("worker", "agentmem_cache_evictions_total", tier="hot")
        assert evicted == restored + AGENTS - hot > AGENTS, "who comes back was evicted, and so is who isn't hot"
        log = stack.logs("worker")
        assert "does not add up" not in log
        assert "dropped" not in log
        await check(stack, Oracle(directory), await client.say("agent 7", "The end?", **ARGUMENTS), "agent 7")
