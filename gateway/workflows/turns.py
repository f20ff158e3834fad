"""One turn, or one listening, on the worker; tried again through an outage, under the same request_id.

The worker replays what it had committed before the answer was lost, so nothing is computed or remembered twice.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

import grpc

from agentmem.errors import AgentmemError, FailedPrecondition, NotFound, ResourceExhausted, Unavailable
from agentmem.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    types_pb2,
)
from gateway import retries, upstream

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_ASIDE_SECONDS: Final = 30.0
"""How long what only makes a run faster may take."""
_READ_AHEAD: Final = 64


class Done(NamedTuple):
    """A turn that is durable. `text` is what was said."""

    text: str
    started: inference_pb2.Started
    finished: inference_pb2.Finished


class Teller:
    """Told of a turn as it goes on. An attempt that fails is told again from its beginning."""

    def started(self, started: inference_pb2.Started) -> None:
        """What memory gave."""

    def said(self, text: str) -> None:
        """More of what the agent says."""


class Turns:
    """Calls to the worker for one run. Event loop only.

    `patience` is how many seconds an outage, or a lack of room, may last before a turn fails.
    """

    def __init__(self, channel: grpc.aio.Channel, patience: float) -> None:
        self._channel = channel
        self._inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self._agents = agent_pb2_grpc.AgentServiceStub(channel)
        self._models = model_pb2_grpc.ModelServiceStub(channel)
        self._patience = patience

    async def speak(self, request: inference_pb2.GenerateRequest, teller: Teller) -> Done:
        """A turn, to its end. Raises AgentmemError."""
        return await self._patiently(lambda: self._generate(request, teller))

    async def listen(self, request: inference_pb2.PrefillRequest) -> Done:
        """An agent takes context in. Raises AgentmemError."""
        response = await self._patiently(lambda: upstream.result(self._inference.Prefill(request)))
        return Done("", response.started, response.finished)

    async def forget(self, keys: Iterable[types_pb2.AgentKey]) -> None:
        """Delete agents that were a run's own. One that cannot be deleted now is deleted when it expires."""
        try:
            async with asyncio.timeout(_ASIDE_SECONDS):
                for key in keys:
                    request = agent_pb2.DeleteAgentRequest(key=key)
                    with suppress(NotFound):
                        await self._patiently(partial(self._delete, request))
        except (AgentmemError, TimeoutError) as error:
            log.warning("agents of a workflow that has ended are left until they expire: %s", error)

    async def _delete(self, request: agent_pb2.DeleteAgentRequest) -> None:
        await upstream.result(self._agents.DeleteAgent(request))

    async def models(self) -> list[str]:
        """The registered models, the default one first. Raises AgentmemError."""
        names: list[str] = []
        request = model_pb2.ListModelsRequest()
        while True:
            page = await self._patiently(lambda: upstream.result(self._models.ListModels(request)))
            names += [model.model_id for model in page.models]
            if not page.next_page_token:
                return names
            request.page_token = page.next_page_token

    async def hint(self, steps: "Mapping[str, int | None]", keys: Mapping[str, types_pb2.AgentKey]) -> None:
        """Say in how many steps agents speak next. What only makes a run faster fails without a word."""
        hints = [agent_pb2.TurnHint(key=keys[name], steps=after) for name, after in steps.items()]
        await _aside(self._agents.SetTurnHints(agent_pb2.SetTurnHintsRequest(hints=hints), timeout=_ASIDE_SECONDS))

    async def prefetch(self, key: types_pb2.AgentKey) -> None:
        """Have an agent's KV in the pool, if there is room; fails without a word."""
        await _aside(self._agents.PrefetchAgent(agent_pb2.PrefetchAgentRequest(key=key), timeout=_ASIDE_SECONDS))

    async def _generate(self, request: inference_pb2.GenerateRequest, teller: Teller) -> Done:
        text, started, finished = "", inference_pb2.Started(), inference_pb2.Finished()
        async with upstream.generation(self._channel, request, _READ_AHEAD) as events:
            async for event in events:
                match event.WhichOneof("event"):
                    case "started":
                        started = event.started
                        teller.started(started)
                    case "delta":
                        text += event.delta.text
                        teller.said(event.delta.text)
                    case "finished":
                        finished = event.finished
        return Done(text, started, finished)

    async def _patiently(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        return await retries.patiently(attempt, _wait, self._patience, well_after=self._patience)


def _wait(failure: retries.Failure) -> float | None:
    return retries.told_wait(failure) if isinstance(failure, Unavailable | ResourceExhausted) else None


async def _aside(call: "upstream.UnaryCall[object]") -> None:
    try:
        await upstream.result(call)
    except (FailedPrecondition, NotFound, ResourceExhausted, Unavailable):
        pass  # the model is away, the agent has no memory yet, there is no room, or an outage: the turn will see
    except AgentmemError as error:
        log.warning("looking ahead in a workflow failed: %s", error)
