from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from agentmem import errors
from agentmem.rpcs import Rpc, rpc_of
from gateway.api.validation import Json
from gateway.worker import Worker

_MOST: Final = 100
"""The oldest are listed."""


@dataclass(eq=False, slots=True)
class RunningTurn:
    namespace: str
    agent_id: str
    model_id: str
    since: datetime
    answering: bool = False
    finished: bool = False


class RunningTurns:
    """A Worker that knows the turns that run on `worker`. Event loop only.

    The stream of a turn that ends without `finished` raises Unavailable. After `finished` the turn is whole: a failure
    that follows is not raised, or the caller would have the turn again.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._turns: dict[RunningTurn, None] = {}

    async def call(self, request: Any, timeout: float | None = None) -> Any:
        with self._noted(request):
            return await self._worker.call(request, timeout)

    async def stream(self, request: Any, timeout: float | None = None) -> AsyncGenerator[Any, None]:
        with self._noted(request) as turn:
            try:
                async with aclosing(self._worker.stream(request, timeout)) as messages:
                    async for message in messages:
                        if turn is not None:
                            turn.answering = True
                            turn.finished = turn.finished or message.HasField("finished")
                        yield message
            except errors.AgentmemError:
                if turn is None or not turn.finished:
                    raise
            if turn is not None and not turn.finished:
                raise errors.Unavailable("the inference worker ended the turn without finishing it")

    async def upload(self, rpc: Rpc, requests: AsyncIterator[Any], timeout: float | None = None) -> Any:
        return await self._worker.upload(rpc, requests, timeout)

    @contextmanager
    def _noted(self, request: Any) -> Iterator[RunningTurn | None]:
        if not rpc_of(request).options.turn:
            yield None
            return
        key = request.key
        turn = RunningTurn(key.namespace, key.agent_id, key.model_id, datetime.now(UTC))
        self._turns[turn] = None
        try:
            yield turn
        finally:
            del self._turns[turn]

    def to_json(self) -> list[Json]:
        return [
            {
                "namespace": turn.namespace,
                "agent_id": turn.agent_id,
                "model_id": turn.model_id,
                "state": "answering" if turn.answering else "waiting",
                "since": turn.since.isoformat(timespec="milliseconds"),
            }
            for turn in list(self._turns)[:_MOST]
        ]
