"""The turns of one request, run."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, TypeAlias

from agentmem.v1 import inference_pb2
from gateway.worker import Worker

Event: TypeAlias = tuple[int, inference_pb2.GenerateResponse]
"""An event, with the number of its choice."""
Events: TypeAlias = AsyncGenerator[Event, None]

_QUEUED: Final = 64


async def each_choice(worker: Worker, turns: Sequence[inference_pb2.GenerateRequest]) -> Events:
    """Yield the events of all turns, each in order. Raises AgentmemError. Closing the iterator cancels what runs.

    A first turn that is an agent's is committed before the others begin, which then find its prompt in memory; unless
    they are that agent's, too, and read the memory that it had before.
    """
    numbered = list(enumerate(turns))
    kept = bool(turns[0].key.agent_id)
    groups = [numbered[:1], numbered[1:]] if kept else [numbered]
    if kept and turns[-1].key.agent_id:
        groups.reverse()
    for group in filter(None, groups):
        if len(group) == 1:
            [(choice, turn)] = group
            async with aclosing(worker.stream(turn)) as events:
                async for event in events:
                    yield choice, event
        else:
            async with aclosing(_merged(worker, group)) as merged:
                async for choice, event in merged:
                    yield choice, event


def may_append(turn: inference_pb2.GenerateRequest) -> bool:
    if turn.memory_mode == inference_pb2.MEMORY_MODE_AUTO:
        return turn.HasField("messages") and all(each.role != "assistant" for each in turn.messages.messages)
    return turn.HasField("append") or turn.memory_mode == inference_pb2.MEMORY_MODE_APPEND


async def _merged(worker: Worker, turns: Sequence[tuple[int, inference_pb2.GenerateRequest]]) -> Events:
    queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue(_QUEUED)

    async def run(choice: int, turn: inference_pb2.GenerateRequest) -> None:
        async with aclosing(worker.stream(turn)) as events:
            async for event in events:
                await queue.put((choice, event))

    async def run_all() -> None:
        failed = None
        try:
            async with asyncio.TaskGroup() as group:
                for choice, turn in turns:
                    group.create_task(run(choice, turn))
        except ExceptionGroup as several:
            failed = several.exceptions[0]
        await queue.put(failed)

    running = asyncio.create_task(run_all())
    try:
        while not isinstance(said := await queue.get(), Exception | None):
            yield said
        if said is not None:
            raise said
    finally:
        while not running.done():  # a failed group takes one cancellation for its own, and would wait for room
            running.cancel()
            await asyncio.wait({running}, timeout=0.1)
