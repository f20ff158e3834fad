"""SIGKILL at random moments during real turns: what was acknowledged is there, and nothing is there by half.

With AGENTMEM_FULL_MATRIX=1 there are 36 kills, else 9.
"""

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc
import pytest

from tests.full_matrix import FULL
from tests.system.client import Client, Turn
from tests.system.stack import Stack

VICTIMS = (1 + 3 * FULL) * ([("store",)] * 5 + [("worker",)] * 2 + [("worker", "store")] * 2)
AGENTS = 3
UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)


@dataclass
class Told:
    agent: str
    turns: list[Turn] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    trying: str = ""
    retried: int = 0


async def talk(client: Client, told: Told, heard: Callable[[grpc.aio.AioRpcError], Awaitable[None]]) -> None:
    """Turns for ever; each is retried under its request_id until it is acknowledged. `heard` waits, or raises."""
    while True:
        number = len(told.turns)
        told.trying = f"turn {number} of {told.agent} 😀 " + "boat " * (number % 5)
        turn = None
        while turn is None:
            try:
                turn = await client.say(told.agent, told.trying, request_id=f"{told.agent}-{number}", max_tokens=6)
            except grpc.aio.AioRpcError as error:
                await heard(error)
                told.retried += 1
        assert turn.finished.durable
        told.turns.append(turn)
        told.texts.append(told.trying)


async def outage(error: grpc.aio.AioRpcError) -> None:
    if error.code() not in UNREACHABLE:
        raise error
    await asyncio.sleep(0.02)


async def check(stack: Stack, told: Told) -> None:
    before = len(told.turns)
    ledger = await stack.ledger(told.agent)
    acknowledged = len(told.turns)  # while the ledger was on its way, another one may have been
    assert before <= len(ledger.turns) <= acknowledged + 1
    start = 0
    for number, place in enumerate(ledger.turns):
        assert place.version == number + 1
        generated = list(ledger.token_ids[place.end_token - place.generated_tokens : place.end_token])
        text = bytes(ledger.text[ledger.offsets[start - 1] if start else 0 : ledger.offsets[place.end_token - 1]])
        said = told.texts[number] if number < acknowledged else told.trying
        assert said.encode() in text, "the prompt of the turn is there"
        if number < acknowledged:
            turn = told.turns[number]
            assert generated == turn.token_ids, "token for token"
            assert turn.finished.version.version == place.version
            assert turn.finished.version.uid == told.turns[0].finished.version.uid
        start = place.end_token
    assert start == len(ledger.token_ids) == len(ledger.offsets)


@pytest.mark.essential("a turn that was acknowledged survives kill -9")
@pytest.mark.kills
@pytest.mark.timeout(600)
async def test_acknowledged_turns_survive_sigkill_at_any_moment(stack: Stack) -> None:
    seed = int(os.environ.get("AGENTMEM_TEST_SEED", "20260101"))
    rng = random.Random(seed)
    everyone = [Told(f"agent-{n}") for n in range(AGENTS)]
    client = await stack.client()
    talks = [asyncio.create_task(talk(client, told, outage)) for told in everyone]
    try:
        for victims in rng.sample(VICTIMS, len(VICTIMS)):
            await asyncio.sleep(rng.uniform(0.0, 0.4))
            stack.kill(*victims)
            await stack.up(*reversed(victims))
            assert not any(task.done() for task in talks), [task.exception() for task in talks if task.done()]
            for told in everyone:
                await check(stack, told)
            progress = [len(told.turns) for told in everyone]
            async with asyncio.timeout(60):
                while any(len(told.turns) == before for told, before in zip(everyone, progress, strict=True)):
                    await asyncio.sleep(0.01)
    finally:
        for task in talks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*talks)
    for told in everyone:
        await check(stack, told)
        assert len(told.turns) >= len(VICTIMS)
    assert sum(told.retried for told in everyone) > len(VICTIMS) / 2, "the kills hit running turns"
