"""A run's calls to the worker, tried again through an outage under the same request_id."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeVar

from agentmem import retries
from agentmem.errors import AgentmemError, FailedPrecondition, NotFound, ResourceExhausted, Unavailable
from agentmem.v1 import agent_pb2, inference_pb2, model_pb2, types_pb2
from gateway.api.exchange import Heard
from gateway.worker import Worker
from gateway.workflows.definition.schema import Definition
from gateway.workflows.inboxes import Listening
from gateway.workflows.program import Turn

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_KEPT_FOR: Final = timedelta(days=7)
"""Idle time after which an agent is deleted that a run left."""
PATIENCE_SECONDS: Final = 300.0
"""How long a run waits for a worker that is away, or for room; then it has failed."""
_BEST_EFFORT_SECONDS: Final = 30.0
"""Limit for a call that only makes a run faster, or cleans up."""

Listener = Callable[[inference_pb2.GenerateResponse], None]
"""Called with the events of a turn; where an attempt fails, again from the beginning."""


class Done(NamedTuple):
    """`text` is empty for a listening."""

    text: str
    started: inference_pb2.Started
    finished: inference_pb2.Finished


class PatientWorker:
    """Event loop only. `patience` is how many seconds an outage, or a lack of room, may last. Calls raise
    AgentmemError.
    """

    def __init__(self, worker: Worker, patience: float = PATIENCE_SECONDS) -> None:
        self._worker = worker
        self._patience = patience

    async def generate(self, request: inference_pb2.GenerateRequest, listener: Listener = lambda _: None) -> Done:
        return await self._retry(lambda: self._generate(request, listener))

    async def prefill(self, request: inference_pb2.PrefillRequest) -> Done:
        response: inference_pb2.PrefillResponse = await self._call(request)
        return Done("", response.started, response.finished)

    async def forget(self, keys: Iterable[types_pb2.AgentKey]) -> None:
        """One that cannot be deleted now expires."""
        try:
            async with asyncio.timeout(_BEST_EFFORT_SECONDS):
                for key in keys:
                    with suppress(NotFound):
                        await self._call(agent_pb2.DeleteAgentRequest(key=key))
        except (AgentmemError, TimeoutError) as error:
            log.warning("agents of a workflow that has ended are left until they expire: %s", error)

    async def models(self) -> list[str]:
        """Return the registered models, the default one first."""
        names: list[str] = []
        request = model_pb2.ListModelsRequest()
        while True:
            page: model_pb2.ListModelsResponse = await self._call(request)
            names += [model.model_id for model in page.models]
            if not page.next_page_token:
                return names
            request.page_token = page.next_page_token

    async def hint(self, steps: "Mapping[str, int | None]", keys: Mapping[str, types_pb2.AgentKey]) -> None:
        """Best effort."""
        hints = [agent_pb2.TurnHint(key=keys[name], steps=after) for name, after in steps.items()]
        await self._try(agent_pb2.SetTurnHintsRequest(hints=hints))

    async def prefetch(self, key: types_pb2.AgentKey) -> None:
        """Best effort."""
        await self._try(agent_pb2.PrefetchAgentRequest(key=key))

    async def _generate(self, request: inference_pb2.GenerateRequest, listener: Listener) -> Done:
        heard = Heard()
        async with aclosing(self._worker.stream(request)) as events:
            async for event in events:
                heard.add(event)
                listener(event)
        return Done("".join(heard.texts), heard.started, heard.finished)

    async def _call(self, request: Any) -> Any:
        return await self._retry(lambda: self._worker.call(request))

    async def _try(self, request: Any) -> None:
        try:
            await self._worker.call(request, _BEST_EFFORT_SECONDS)
        except (FailedPrecondition, NotFound, ResourceExhausted, Unavailable):
            pass  # no model, memory or room, or an outage: the turn will see
        except AgentmemError as error:
            log.warning("looking ahead in a workflow failed: %s", error)

    async def _retry(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        return await retries.retry(attempt, _wait, self._patience, well_after=self._patience)


def generate_request(
    definition: Definition, task: Turn | Listening, key: types_pb2.AgentKey, request_id: str
) -> inference_pb2.GenerateRequest:
    agent, defaults = definition.agents[task.agent], definition.defaults
    request = inference_pb2.GenerateRequest(
        key=key,
        request_id=request_id,
        append=_append("user", task.message),
        max_tokens=task.max_tokens if isinstance(task, Turn) else agent.max_tokens or defaults.max_tokens,
        sampling=types_pb2.Sampling(**(agent.sampling or defaults.sampling).model_dump(exclude_none=True)),
        stop=defaults.stop,
        expiry=_expiry(definition, task.agent),
    )
    if isinstance(task, Turn) and task.json_schema:
        request.json_schema = task.json_schema
    return request


def listen_request(
    definition: Definition, listening: Listening, key: types_pb2.AgentKey, request_id: str
) -> inference_pb2.PrefillRequest:
    """An agent that is introduced must have no memory yet."""
    request = inference_pb2.PrefillRequest(
        key=key,
        request_id=request_id,
        append=_append(listening.role, listening.message),
        expiry=_expiry(definition, listening.agent),
    )
    if listening.role == "system":
        request.if_version = 0
    return request


def _append(role: str, text: str) -> types_pb2.Append:
    message = types_pb2.ChatMessage(role=role, content=text)
    return types_pb2.Append(messages=types_pb2.Messages(messages=[message]))


def _expiry(definition: Definition, agent: str) -> types_pb2.Expiry:
    expiry = types_pb2.Expiry()
    if not definition.agents[agent].persist:
        expiry.delete_after.FromTimedelta(_KEPT_FOR)
    return expiry


def _wait(failure: retries.Failure) -> float | None:
    return retries.retry_delay(failure) if isinstance(failure, Unavailable | ResourceExhausted) else None
