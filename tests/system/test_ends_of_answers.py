"""The end of an answer: its stop token, which is another one in history, and KV, which comes after it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentmem.v1 import types_pb2
from inference_service.turns.pool_writer import PoolWriter
from tests.system.client import append, chat
from tests.system.recomputed import ARGUMENTS, LONG
from tests.system.stack import Stack
from tests.system.test_changed_models import change_json, stack, working  # noqa: F401 - a fixture
from tests.tiny_models import BOS, END, START, write_gpt_oss, write_llama

RETURNS = (
    f"{{% for m in messages %}}{START}{{{{ m.role }}}}\n{{{{ m.content }}}}"
    f"{{% if m.role == 'assistant' and not loop.last %}}{BOS}{{% else %}}{END}{{% endif %}}{{% endfor %}}"
    f"{{% if add_generation_prompt %}}{{{{ '{START}assistant\n' }}}}{{% endif %}}"
)
BOS_ID, START_ID, END_ID = range(3)
FACTS = "The colour of the boat is green, and the house by the sea is red. " * 12


_NO = {"type": "boolean", "const": False}
ANSWER = json.dumps({"type": "object", "properties": {"no": _NO}, "required": ["no"], "additionalProperties": False})


@pytest.mark.slow
async def test_a_stop_token_that_history_does_not_have_is_not_remembered(stack: Stack, tmp_path: Path) -> None:  # noqa: F811
    """Each next turn would drop it, and make an automatic snapshot in the place of one that is of use."""
    directory = write_gpt_oss(tmp_path / "m")
    change_json(directory / "tokenizer_config.json", chat_template=RETURNS)
    agent = "forgets"
    async with working(stack, directory) as worker:
        ends = types_pb2.Sampling(logit_bias={END_ID: 100})
        first = await worker.client.turn(agent, messages=chat(("user", FACTS)), json_schema=ANSWER, sampling=ends)
        assert first.token_ids[-1] == END_ID and first.finished.usage.completion_tokens == len(first.token_ids)
        before = list((await stack.ledger(agent)).token_ids)
        assert before[-len(first.token_ids) + 1 :] == first.token_ids[:-1]
        await stack.on_disk(agent)
        hot = await worker.turn(agent)
        assert (hot.match, hot.cached) == ("EXTEND", {"hot": len(before)})
        ledger = await stack.ledger(agent)
        assert list(ledger.token_ids)[len(before) : len(before) + 2] == [BOS_ID, START_ID]
        assert next(turn.end_token for turn in ledger.turns) == len(before), "the first turn is whole"
        assert not await worker.client.snapshots(agent)


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
