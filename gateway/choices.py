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


async def each_choice(channel: grpc.aio.Channel, turns: Sequence[inference_pb2.GenerateRequest], queue: int) -> Events:
    """The events of all turns, each in order; at most `queue` of a turn's events wait here. Raises AgentmemError.

    A first turn that is an agent's is committed before the others begin, which then find its prompt in memory. Closing
    the iterator cancels what runs.
    """
    kept = bool(turns[0].key.agent_id)
    alone, together = (turns[:1], turns[1:]) if kept or len(turns) == 1 else ((), turns)
    for turn in alone:
        async with upstream.generation(channel, turn, queue) as events:
            async for event in events:
                yield 0, event
    if together:
        async with aclosing(_merged(channel, together, queue)) as merged:
            async for choice, event in merged:
                yield choice + len(alone), event


async def _merged(channel: grpc.aio.Channel, turns: Sequence[inference_pb2.GenerateRequest], limit: int) -> Events:
    queue: asyncio.Queue[tuple[int, inference_pb2.GenerateResponse]] = asyncio.Queue(limit)

    async def run(choice: int, turn: inference_pb2.GenerateRequest) -> None:
        async with upstream.generation(channel, turn, limit) as events:
            async for event in events:
                await queue.put((choice, event))

    running = [asyncio.create_task(run(choice, turn)) for choice, turn in enumerate(turns)]
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
