"""Load through the gateway: many streams at once, and clients that stop reading.

With AGENTMEM_FULL_MATRIX=1 there are 200 streams, else 20.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentmem.v1 import inference_pb2, inference_pb2_grpc, types_pb2
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
    open_chat,
    peak_of_running,
)
from tests.system.stack import Stack

STREAMS = 200 if FULL else 20
STALLED = 4
"""Of each door."""
STALL_LIMIT = 1.5
LONG: dict[str, Any] = {"max_tokens": 3500, "logit_bias": {"2": -100}}
"""A chat that does not end by itself."""
WIDE: dict[str, Any] = {**LONG, "logprobs": True, "top_logprobs": 20}
"""The same, and every token takes more than a kilobyte."""

pytestmark = pytest.mark.timeout(3600 if FULL else 600)


@asynccontextmanager
async def observed(model: str, folder: Path, patch: pytest.MonkeyPatch, *worker_flags: str) -> AsyncIterator[Stack]:
    """The three services, of which gateway and worker tell what they hold."""
    worker = ("--max-requests", str(STREAMS), "--pool-bytes", str(96 * MEGABYTE), *worker_flags)
    gateway = ("--stall-limit", str(STALL_LIMIT))
    async with load.observed(model, folder, patch, worker_flags=worker, gateway_flags=gateway) as stack:
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


@pytest.mark.slow
async def test_readers_that_stall_are_cut_off_and_cost_others_nothing(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with observed(f"tiny={tiny}", tmp_path, monkeypatch) as stack:
        target = f"127.0.0.1:{stack.ports['grpc']}"
        # Without probing, a channel takes no more than a window of 64 KiB that nobody has asked for.
        async with grpc.aio.insecure_channel(target, options=[("grpc.http2.bdp_probe", 0)]) as channel:
            await complete(stack, "a", [("user", "hello")], max_tokens=3)
            before = await holdings(stack)
            chats = [await open_chat(stack, f"http {n}", [("user", "a")], slow=True, **WIDE) for n in range(STALLED)]
            calls = [
                inference_pb2_grpc.InferenceServiceStub(channel).Generate(wide(f"grpc {n}")) for n in range(STALLED)
            ]
            assert all([await call.read() is not grpc.aio.EOF for call in calls])
            for number in range(5):
                await complete(stack, f"reader {number}", [("user", "hello")], **{**LONG, "max_tokens": 8})
            await idle(stack)
            for chat in chats:
                chat.drain()
                with pytest.raises(ConnectionResetError):
                    await to_end(chat)
                assert not chat.done
                assert not chat.last
                await chat.close()
            for call in calls:
                with pytest.raises(grpc.aio.AioRpcError):
                    await to_end_of_call(call)
                assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert "nothing was read" in (await call.details() or "")
        check_flat(before, await holdings(stack), "gateway")
        for agent in ("http 0", "grpc 0"):
            assert not (await stack.ledger(agent)).token_ids, "a turn that was cut off is not kept"


def wide(agent: str) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        key=types_pb2.AgentKey(agent_id=agent, model_id="tiny"),
        prompt="a",
        max_tokens=3500,
        top_logprobs=20,
        sampling=types_pb2.Sampling(ignore_eos=True),
    )


async def to_end(chat: Chat) -> None:
    """Read all that comes. Raises ConnectionResetError where it is broken off, also by an end without [DONE]."""
    await chat.status()
    async for _ in chat.events():
        pass
    if not chat.done:
        raise ConnectionResetError


async def to_end_of_call(call: grpc.aio.UnaryStreamCall[Any, Any]) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass
