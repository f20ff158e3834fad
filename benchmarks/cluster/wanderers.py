"""Clients of a cluster that ask at any door, and write down what they were told."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

import grpc

from agentmem.channels import connect
from agentmem.errors import AgentmemError
from agentmem.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from agentmem.validation import AgentKey
from benchmarks import turns
from benchmarks.cluster.clusters import MODEL
from benchmarks.cluster.history import Append, Operation, Outcome, Read
from benchmarks.cluster.lists import listed
from benchmarks.cluster.machines import Node
from benchmarks.turns import Turn
from inference_service.storage.client import StoreClient

ATTEMPTS: Final = 4
SECONDS: Final = 5.0
"""A client waits for one answer for so long."""
_CERTAIN: Final = (
    *(grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED),
    *(grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION),
)
"""What says that a turn was not committed. UNAVAILABLE may say that this is not known."""
_INPUT: Final = types_pb2.Append(text="go on")


@dataclass(frozen=True)
class Door:
    """Where a client may ask: a node's worker or gateway, and the store beside it for reads."""

    inference: Any
    store: StoreClient

    @classmethod
    @asynccontextmanager
    async def to(cls, node: Node, number: int) -> AsyncIterator[Self]:
        async with AsyncExitStack() as stack:
            store, door = [
                await stack.enter_async_context(connect(place)) for place in (node.store, node.doors[number])
            ]
            yield cls(inference_pb2_grpc.InferenceServiceStub(door), StoreClient(store))

    async def turn(self, agent: str, request_id: str) -> Turn:
        """A turn of the agent. Raises AioRpcError."""
        key = types_pb2.AgentKey(namespace="default", agent_id=agent, model_id=MODEL)
        request = inference_pb2.GenerateRequest(key=key, request_id=request_id, append=_INPUT)
        return await turns.take(self.inference, request)

    async def read(self, agent: str) -> tuple[str, ...]:
        """The agent's list. Raises AgentmemError."""
        opened = await self.store.open(AgentKey("default", agent, MODEL), peek=True)
        return listed(opened.ledger) if opened.ledger is not None else ()


@dataclass
class Wanderer:
    """A client that asks at any door, again at another. `again` counts turns that were acknowledged after a failure."""

    name: str
    doors: Sequence[Door]
    agents: Sequence[str]
    seed: int
    history: list[Operation] = field(default_factory=list)
    again: int = 0

    async def run(self, ended: asyncio.Event) -> None:
        """Turns and reads until `ended`."""
        chance, number = random.Random(self.seed), 0
        while not ended.is_set():
            agent = chance.choice(self.agents)
            if chance.random() < 0.2:
                began = time.monotonic()
                try:
                    found = await chance.choice(self.doors).read(agent)
                except AgentmemError:
                    await asyncio.sleep(0.02)
                    continue
                self.history.append(Read(agent, began, time.monotonic(), found))
            else:
                number += 1
                self.history.append(await self._append(agent, f"{self.name}-{number}", chance))

    async def _append(self, agent: str, request_id: str, chance: random.Random) -> Append:
        began, in_doubt = time.monotonic(), False
        for attempt in range(chance.randint(1, ATTEMPTS)):
            await asyncio.sleep(chance.uniform(0, 0.05 * attempt))
            try:
                async with asyncio.timeout(SECONDS):
                    turn = await chance.choice(self.doors).turn(agent, request_id)
            except TimeoutError:
                in_doubt = True
            except grpc.aio.AioRpcError as error:
                in_doubt |= error.code() not in _CERTAIN
            else:
                *seen, own = turn.text.splitlines()
                if own != request_id or not turn.version:
                    raise turns.WrongTurn(f"{request_id} was answered with {own}")
                self.again += attempt > 0
                return Append(agent, request_id, began, time.monotonic(), Outcome.OK, tuple(seen))
        outcome = Outcome.UNKNOWN if in_doubt else Outcome.FAILED
        return Append(agent, request_id, began, time.monotonic(), outcome)
