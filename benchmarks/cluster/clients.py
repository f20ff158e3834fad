"""Clients of a cluster that ask at any door, and write down what they were told.

`Wanderer` asks anybody, and may give a turn up; `Speakers` ask one door after the other until they are answered.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

import grpc

from agentmem import errors
from agentmem.channels import connect
from agentmem.v1 import inference_pb2_grpc, types_pb2
from agentmem.validation import AgentKey
from benchmarks import turns
from benchmarks.cluster.clusters import MODEL, Cluster
from benchmarks.cluster.history import Append, Operation, Outcome, Read
from benchmarks.cluster.lists import listed
from benchmarks.nodes import Node
from inference_service.storage.client import StoreClient

ATTEMPTS: Final = 4
_SECONDS, _PATIENT_SECONDS = 5.0, 120.0
_CERTAIN: Final = (errors.Aborted, errors.ResourceExhausted, errors.InvalidArgument, errors.FailedPrecondition)
"""With these a turn was not committed. Unavailable may mean that this is not known."""
_FINAL: Final = (
    *(errors.InvalidArgument, errors.Unauthenticated, errors.PermissionDenied, errors.NotFound),
    *(errors.FailedPrecondition, errors.Unimplemented, errors.DataLoss),
)
_FIRST_WAIT, _LAST_WAIT = 0.5, 8.0


@dataclass(frozen=True)
class Door:
    """A node's worker or gateway, and the store beside it for reads."""

    inference: Any
    store: StoreClient

    @classmethod
    @asynccontextmanager
    async def to(cls, node: Node, number: int) -> AsyncIterator[Self]:
        async with connect(node.store) as store, connect(node.doors[number]) as door:
            yield cls(inference_pb2_grpc.InferenceServiceStub(door), StoreClient(store))

    async def turn(self, agent: str, request_id: str, seconds: float) -> tuple[tuple[str, ...], float, float]:
        """Take a turn: the list that it continued, and the monotonic times of its first token and its end. Raises
        AgentmemError and TimeoutError."""
        arguments: dict[str, Any] = {"request_id": request_id, "append": types_pb2.Append(text="go on")}
        sent = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                turn = await turns.ask(self.inference, MODEL, agent, max_tokens=1, **arguments)
        except grpc.aio.AioRpcError as error:
            raise errors.from_rpc(error) from error
        *seen, own = turn.text.splitlines()
        if own != request_id or not turn.version:
            raise turns.WrongTurn(f"{request_id} was answered with {own}")
        return tuple(seen), sent + turn.first, sent + turn.seconds

    async def read(self, agent: str) -> tuple[str, ...]:
        """Raises AgentmemError."""
        opened = await self.store.open(AgentKey("default", agent, MODEL), peek=True)
        return listed(opened.ledger) if opened.ledger is not None else ()


@dataclass
class Wanderer:
    """A client that asks at any door. `again` counts turns that were acknowledged after a failure."""

    name: str
    doors: Sequence[Door]
    agents: Sequence[str]
    seed: int
    history: list[Operation] = field(default_factory=list)
    again: int = 0

    async def run(self, ended: asyncio.Event) -> None:
        chance, number = random.Random(self.seed), 0
        while not ended.is_set():
            agent = chance.choice(self.agents)
            if chance.random() < 0.2:
                began = time.monotonic()
                try:
                    found = await chance.choice(self.doors).read(agent)
                except errors.AgentmemError:
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
                seen, _, _ = await chance.choice(self.doors).turn(agent, request_id, _SECONDS)
            except (TimeoutError, errors.AgentmemError) as error:
                in_doubt |= not isinstance(error, _CERTAIN)
            else:
                self.again += attempt > 0
                return Append(agent, request_id, began, time.monotonic(), Outcome.OK, seen)
        outcome = Outcome.UNKNOWN if in_doubt else Outcome.FAILED
        return Append(agent, request_id, began, time.monotonic(), outcome)


@dataclass(frozen=True)
class Spoken(Append):
    """An acknowledged turn; `door` was asked first, `failures` are the errors before the answer."""

    first: float = 0.0
    door: int = 0
    failures: tuple[str, ...] = ()


@dataclass
class Speakers:
    doors: Sequence[Door]
    agents: Sequence[str]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    spoken: list[Spoken] = field(default_factory=list)
    _running: list[asyncio.Task[None]] = field(default_factory=list)

    async def wait(self, seconds: float) -> None:
        """Raises what a speaker raised."""
        done, _ = await asyncio.wait(self._running, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def end(self) -> None:
        self.ended.set()
        await asyncio.gather(*self._running)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Yield while they speak. Each begins at a door of its own, as a balancer spreads connections, and stays at the
        last that answered.
        """
        self._running = [asyncio.create_task(self._speak(*each)) for each in enumerate(self.agents)]
        try:
            yield self
        finally:
            for task in self._running:
                task.cancel()

    async def _speak(self, number: int, agent: str) -> None:
        chance, door, turn = random.Random(number), number % len(self.doors), 0
        while not self.ended.is_set():
            turn += 1
            spoken = await self._turn(agent, f"{agent}-{turn}", door, chance)
            self.spoken.append(spoken)
            door = (door + len(spoken.failures)) % len(self.doors)

    async def _turn(self, agent: str, request_id: str, door: int, chance: random.Random) -> Spoken:
        began, failures = time.monotonic(), list[str]()
        while True:
            asked = self.doors[(door + len(failures)) % len(self.doors)]
            try:
                seen, first, ended = await asked.turn(agent, request_id, _PATIENT_SECONDS)
            except TimeoutError:
                failures.append("no answer")
            except _FINAL:
                raise
            except errors.AgentmemError as failure:
                failures.append(type(failure).__name__)
                await asyncio.sleep(_pause(failure, len(failures), chance))
            else:
                return Spoken(agent, request_id, began, ended, Outcome.OK, seen, first, door, tuple(failures))


def _pause(failure: errors.AgentmemError, failures: int, chance: random.Random) -> float:
    """Return seconds as SDKs wait: the answer's own, else 0.5 doubling to 8, less up to a quarter."""
    if said := getattr(failure, "retry_after", 0.0):
        return float(said)
    return min(_LAST_WAIT, _FIRST_WAIT * 2.0 ** (failures - 1)) * chance.uniform(0.75, 1.0)


@asynccontextmanager
async def speakers(cluster: Cluster, agents: Sequence[str]) -> AsyncIterator[Speakers]:
    """Yield speakers at all gateways of a cluster, who end with the block."""
    async with AsyncExitStack() as stack:
        doors = [await stack.enter_async_context(Door.to(node, 1)) for node in cluster.nodes.values()]
        yield await stack.enter_async_context(Speakers(doors, agents).running())
