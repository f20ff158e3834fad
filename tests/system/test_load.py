"""Load through the gateway: many streams at once.

With AGENTMEM_FULL_MATRIX=1 there are 200 streams, else 20.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.demo_model.world import KINDS, Fact
from tests.full_matrix import FULL
from tests.system import load
from tests.system.load import (
    MEGABYTE,
    Chat,
    check_flat,
    complete,
    holdings,
    idle,
    peak_of_running,
)
from tests.system.stack import Stack

STREAMS = 200 if FULL else 20

pytestmark = pytest.mark.timeout(3600 if FULL else 600)


@asynccontextmanager
async def observed(model: str, folder: Path, patch: pytest.MonkeyPatch, *worker_flags: str) -> AsyncIterator[Stack]:
    """The three services, of which gateway and worker tell what they hold."""
    worker = ("--max-requests", str(STREAMS), "--pool-bytes", str(96 * MEGABYTE), *worker_flags)
    async with load.observed(model, folder, patch, worker_flags=worker) as stack:
        yield stack


def facts() -> list[Fact]:
    """So many facts that differ, about ten things only: whoever is given another's memory answers wrongly."""
    values = STREAMS // (2 * len(KINDS))
    return [
        Fact(kind, entity, value) for kind in KINDS for entity in kind.entities[:2] for value in kind.values[:values]
    ]


def question(fact: Fact, number: int) -> tuple[str, str]:
    return "user", fact.kind.questions[number].format(e=fact.entity)


@pytest.mark.slow
async def test_streams_at_once_are_each_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told a fact and asked for it, then asked again by the conversation's next turn, and that once more."""
    async with observed("demo", tmp_path, monkeypatch) as stack:
        told = facts()
        assert len({fact.answer for fact in told}) == len(told) == STREAMS

        async def ask_all(chats: list[list[tuple[str, str]]]) -> list[Chat]:
            asking = (complete(stack, f"agent {n}", chat, max_tokens=24) for n, chat in enumerate(chats))
            answers = await asyncio.gather(*asking)
            for fact, answer in zip(told, answers, strict=True):
                assert answer.text.strip() == fact.answer
                assert answer.last["agentmem"]["durable"]
            await idle(stack)
            return answers

        chats = [[("user", fact.answer), ("assistant", f"Noted, {fact.clause}."), question(fact, 0)] for fact in told]
        async with peak_of_running(stack) as peak:
            answers = await ask_all(chats)
        assert peak() == STREAMS, "all at once"
        assert {answer.last["agentmem"]["match"] for answer in answers} == {"new"}
        chats = [
            [*chat, ("assistant", answer.text), question(fact, 1)]
            for chat, answer, fact in zip(chats, answers, told, strict=True)
        ]
        answers = await ask_all(chats)
        assert {answer.last["agentmem"]["match"] for answer in answers} == {"extend"}
        assert {tuple(answer.last["agentmem"]["cached"]) for answer in answers} == {("hot",)}
        before = await holdings(stack)
        await ask_all(chats)  # No longer than before, so that nothing has a reason to grow.
        check_flat(before, await holdings(stack))
