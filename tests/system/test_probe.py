"""ProbeAgent: what a prompt would reuse is what it then reuses, and asking changes nothing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentmem.v1 import types_pb2
from inference_service.turns.pool_writer import PoolWriter
from tests.system.client import append
from tests.system.recomputed import ARGUMENTS, LONG
from tests.system.stack import Stack
from tests.system.test_changed_models import stack, working  # noqa: F401 - a fixture
from tests.tiny_models import write_llama


async def test_a_probe_at_once_after_an_answer_sees_what_the_turn_leaves(
    stack: Stack,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer is out before the KV is in the pool: a reader waits for it, as the next turn does."""
    keep = PoolWriter.keep

    async def slow(self: PoolWriter, *arguments: Any) -> None:
        await asyncio.sleep(0.3)
        await keep(self, *arguments)

    monkeypatch.setattr(PoolWriter, "keep", slow)
    async with working(stack, write_llama(tmp_path / "m")) as worker:
        await worker.client.say("b", f"b {LONG}", **ARGUMENTS)
        assert (await worker.client.agent("b")).tier == types_pb2.TIER_HOT
        await worker.client.say("a", LONG, **ARGUMENTS)
        expected = await worker.client.probe("a", append=append("And now?"))
        assert [each.tier for each in expected.cached] == [types_pb2.TIER_HOT]
        turn = await worker.client.say("a", "And now?", **ARGUMENTS)
        assert turn.started.cache == expected
