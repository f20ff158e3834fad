"""Every architecture through real processes: resumed equals recomputed, after eviction, restart and a cut.

The hybrid ones are in test_hybrid.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from agentmem.v1 import types_pb2
from tests.oracle import Oracle
from tests.system.stack import running
from tests.system.test_hybrid import ARGUMENTS, LONG, check, restarted
from tests.tiny_models import write_deepseek2, write_llama, write_llama_80, write_qwen2, write_qwen3
from tests.tiny_own_attention import write_deepseek3, write_deepseek32

TOKEN_BYTES = {
    write_llama: 320,
    write_qwen2: 320,
    write_qwen3: 320,
    write_deepseek2: 240,
    write_deepseek3: 160,
    write_deepseek32: 320,
    write_llama_80: 576,
}
"""Of Q4 KV in float32."""


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("write", TOKEN_BYTES, ids=[w.__name__.removeprefix("write_") for w in TOKEN_BYTES])
async def test_evicted_restarted_and_cut(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    directory = write(tmp_path / "m")
    oracle = Oracle(directory)
    flags = ("--pool-bytes", str(3 * 256 * TOKEN_BYTES[write]))
    async with running(f"tiny={directory}", worker_flags=flags) as stack:
        client = await stack.client()
        tokens = await check(stack, oracle, await client.say("a", LONG, **ARGUMENTS))
        assert (await client.agent("a")).tier == types_pb2.TIER_HOT
        await client.say("b", "Nobody knows. " + LONG, **ARGUMENTS)
        await stack.on_disk("a")
        assert (await client.agent("a")).tier == types_pb2.TIER_WARM, "it made room"
        warm = await client.say("a", "Who told you that?", **ARGUMENTS)
        assert (warm.match, warm.cached) == ("EXTEND", {"warm": tokens})
        tokens = await check(stack, oracle, warm)
        await restarted(stack, "a")
        warm = await client.say("a", "And now?", **ARGUMENTS)
        assert (warm.match, warm.cached) == ("EXTEND", {"warm": tokens})
        await check(stack, oracle, warm)
        ids = list((await stack.ledger("a")).token_ids)[:300]
        cut = await client.turn("a", token_ids=types_pb2.TokenIds(ids=[*ids, 7, 8, 9]), **ARGUMENTS)
        assert (cut.match, cut.cached) == ("PARTIAL", {"hot": 300})
        await check(stack, oracle, cut)
