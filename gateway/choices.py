"""The turns of one request, run: the agent's own first, then the other choices together."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc

from agentmem.v1 import inference_pb2
from gateway import upstream

Events: TypeAlias = AsyncGenerator[tuple[int, inference_pb2.GenerateResponse], None]
"""Each with the number of the choice that it is of."""

_Numbered: TypeAlias = Sequence[tuple[int, inference_pb2.GenerateRequest]]


async def each_choice(channel: grpc.aio.Channel, turns: Sequence[inference_pb2.GenerateRequest], queue: int) -> Events:
    """The events of all turns, each in order; at most `queue` of a turn's events wait here. Raises AgentmemError.

    A first turn that is an agent's is committed before the others begin, which then find its prompt in memory; unless
    they are that agent's, too, and read the memory that it had before. Closing the iterator cancels what runs.
    """
    numbered = list(enumerate(turns))
    kept = bool(turns[0].key.agent_id)
    groups = [numbered[:1], numbered[1:]] if kept else [numbered]
    if kept and turns[-1].key.agent_id:
        groups.reverse()
    for group in groups:
        async with aclosing(
            _merged(channel, group, queue) if len(group) > 1 else _alone(channel, group, queue)
        ) as some:
            async for choice, event in some:
                yield choice, event


def may_append(turn: inference_pb2.GenerateRequest) -> bool:
    """Whether a turn may add to its agent's memory what its input says, which is no conversation by itself then."""
    if turn.memory_mode == inference_pb2.MEMORY_MODE_AUTO:
        return turn.HasField("messages") and all(each.role != "assistant" for each in turn.messages.messages)
    return turn.HasField("append") or turn.memory_mode == inference_pb2.MEMORY_MODE_APPEND


async def _alone(channel: grpc.aio.Channel, turns: _Numbered, limit: int) -> Events:
    for choice, turn in turns:
        async with upstream.generation(channel, turn, limit) as events:
            async for event in events:
                yield choice, event


async def _merged(channel: grpc.aio.Channel, turns: _Numbered, limit: int) -> Events:
    queue: asyncio.Queue[tuple[int, inference_pb2.GenerateResponse]] = asyncio.Queue(limit)

    async def run(choice: int, turn: inference_pb2.GenerateRequest) -> None:
        async with upstream.generation(channel, turn, limit) as events:
            async for event in events:
                await queue.put((choice, event))

    running = [asyncio.create_task(run(choice, turn)) for choice, turn in turns]
    everything = asyncio.gather(*running)
    try:
        while not (everything.done() and queue.empty()):
            next_one = asyncio.ensure_future(queue.get())
            waiting: set[asyncio.Future[Any]] = {next_one, everything}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if next_one.done():
                yield next_one.result()
            else:
                next_one.cancel()
        await everything  # raises what a turn failed of
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, everything, return_exceptions=True)
