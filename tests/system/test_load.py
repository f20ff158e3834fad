"""Load through the gateway: many streams at once. With AGENTMEM_FULL_MATRIX=1 there are 200, else 20."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.demo_model.world import KINDS, Fact
from tests.full_matrix import FULL
from tests.system.load import MEGABYTE, Chat, complete
from tests.system.stack import hosting

STREAMS = 200 if FULL else 20

pytestmark = pytest.mark.timeout(3600 if FULL else 600)


def facts() -> list[Fact]:
    """So many facts that differ, about ten things only: whoever is given another's memory answers wrongly."""
    values = STREAMS // (2 * len(KINDS))
    return [
        Fact(kind, entity, value) for kind in KINDS for entity in kind.entities[:2] for value in kind.values[:values]
    ]


def question(fact: Fact, number: int) -> tuple[str, str]:
    return "user", fact.kind.questions[number].format(e=fact.entity)


@pytest.mark.slow
async def test_streams_at_once_are_each_right() -> None:
    """Told a fact and asked for it, then asked again by the conversation's next turn."""
    flags = ("--max-requests", str(STREAMS), "--pool-bytes", str(96 * MEGABYTE))
    async with hosting("demo", "store", "worker", "gateway", worker_flags=flags) as stack:
        told = facts()
        assert len({fact.answer for fact in told}) == len(told) == STREAMS

        async def ask_all(chats: list[list[tuple[str, str]]]) -> list[Chat]:
            asking = (complete(stack, f"agent {n}", chat, max_tokens=24) for n, chat in enumerate(chats))
            answers = await asyncio.gather(*asking)
            for fact, answer in zip(told, answers, strict=True):
                assert answer.text.strip() == fact.answer
                assert answer.last["agentmem"]["durable"]
            return answers

        chats = [[("user", fact.answer), ("assistant", f"Noted, {fact.clause}."), question(fact, 0)] for fact in told]
        answers = await ask_all(chats)
        assert {answer.last["agentmem"]["match"] for answer in answers} == {"new"}
        chats = [
            [*chat, ("assistant", answer.text), question(fact, 1)]
            for chat, answer, fact in zip(chats, answers, told, strict=True)
        ]
        answers = await ask_all(chats)
        assert {answer.last["agentmem"]["match"] for answer in answers} == {"extend"}
        assert {tuple(answer.last["agentmem"]["cached"]) for answer in answers} == {("hot",)}
