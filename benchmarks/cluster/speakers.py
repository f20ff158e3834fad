"""Agents that take turn after turn at gateways' doors, and ask at the next door where they are not answered."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from agentmem import errors
from agentmem.channels import connect
from agentmem.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from benchmarks import turns
from benchmarks.cluster.clusters import MODEL, Cluster
from benchmarks.cluster.history import Append, Outcome

_FINAL: Final = (
    *(errors.InvalidArgument, errors.Unauthenticated, errors.PermissionDenied, errors.NotFound),
    *(errors.FailedPrecondition, errors.Unimplemented, errors.DataLoss),
)
"""Failures that no repetition ends."""
_FIRST_WAIT: Final = 0.5
_LAST_WAIT: Final = 8.0
_ATTEMPT_SECONDS: Final = 120.0


@dataclass(frozen=True)
class Spoken:
    """An acknowledged turn, on the client's monotonic clock. `door` is the node that was asked first, `failures` the
    errors."""

    agent: str
    request_id: str
    began: float
    first: float
    ended: float
    seen: tuple[str, ...]
    door: int = 0
    failures: tuple[str, ...] = ()

    def append(self) -> Append:
        return Append(self.agent, self.request_id, self.began, self.ended, Outcome.OK, self.seen)


@dataclass
class Speakers:
    """One task for each agent. `spoken` has all turns that were acknowledged."""

    stubs: Sequence[Any]
    agents: Sequence[str]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    spoken: list[Spoken] = field(default_factory=list)
    _running: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> None:
        """Begin, each at a door of its own; then at the last that answered."""
        self._running = [asyncio.create_task(self._speak(*each)) for each in enumerate(self.agents)]

    async def wait(self, seconds: float) -> None:
        """Let them speak. Raises what one of them raised."""
        done, _ = await asyncio.wait(self._running, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def end(self) -> None:
        """No new turns; returns when those that run are acknowledged."""
        self.ended.set()
        await asyncio.gather(*self._running)

    def cancel(self) -> None:
        for task in self._running:
            task.cancel()

    async def _speak(self, number: int, agent: str) -> None:
        chance, door, turn = random.Random(number), number % len(self.stubs), 0
        while not self.ended.is_set():
            turn += 1
            spoken = await self._turn(agent, f"{agent}-{turn}", door, chance)
            self.spoken.append(spoken)
            door = (door + len(spoken.failures)) % len(self.stubs)

    async def _turn(self, agent: str, request_id: str, door: int, chance: random.Random) -> Spoken:
        key = types_pb2.AgentKey(namespace="default", agent_id=agent, model_id=MODEL)
        asked = inference_pb2.GenerateRequest(
            key=key, request_id=request_id, append=types_pb2.Append(text="go on"), max_tokens=1
        )
        began, first_door, failures = time.monotonic(), door, list[str]()
        while True:
            sent = time.monotonic()
            try:
                async with asyncio.timeout(_ATTEMPT_SECONDS):
                    turn = await turns.take(self.stubs[door % len(self.stubs)], asked)
            except TimeoutError:
                failures.append("no answer")
            except grpc.aio.AioRpcError as error:
                failure = errors.from_rpc(error)
                if isinstance(failure, _FINAL):
                    raise
                failures.append(error.code().name)
                await asyncio.sleep(_pause(failure, len(failures), chance))
            else:
                *seen, own = turn.text.splitlines()
                if own != request_id or not turn.version:
                    raise turns.WrongTurn(f"{request_id} was answered with {own}")
                first, ended = sent + turn.first, sent + turn.seconds
                return Spoken(agent, request_id, began, first, ended, tuple(seen), first_door, tuple(failures))
            door += 1


def _pause(failure: errors.AgentmemError, failures: int, chance: random.Random) -> float:
    """As SDKs wait: the answer's seconds, else 0.5 doubling to 8, less up to a quarter."""
    said = getattr(failure, "retry_after", 0.0)
    if said:
        return float(said)
    return min(_LAST_WAIT, _FIRST_WAIT * 2.0 ** (failures - 1)) * chance.uniform(0.75, 1.0)


@asynccontextmanager
async def speakers(cluster: Cluster, agents: Iterable[str]) -> AsyncIterator[Speakers]:
    """Those who speak at all gateways of a cluster; begun, and ended when the block ends."""
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(connect(node.doors[1])) for node in cluster.nodes.values()]
        found = Speakers([inference_pb2_grpc.InferenceServiceStub(channel) for channel in channels], tuple(agents))
        found.start()
        try:
            yield found
        finally:
            found.cancel()
