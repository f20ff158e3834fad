"""A worker that says what a test tells it to: a real gRPC server on a Unix socket, without a model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import grpc

from agentmem.errors import AgentmemError, InvalidArgument, NotFound, Unavailable
from agentmem.process.server import GrpcServer
from agentmem.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    types_pb2,
)

REVISION = bytes(range(16))
TOLD_VERSION = {"uid": "u1", "version": 3, "revision": "AAECAwQFBgcICQoLDA0ODw=="}
"""The version of `finished`, as answers tell it."""

Script = Callable[[inference_pb2.GenerateRequest], AsyncIterator[inference_pb2.GenerateResponse]]


def started(match: Any = types_pb2.MATCH_EXTEND, hot: int = 7, warm: int = 5) -> inference_pb2.GenerateResponse:
    cached = [types_pb2.TierTokens(tier=types_pb2.TIER_HOT, tokens=hot)] if hot else []
    cached += [types_pb2.TierTokens(tier=types_pb2.TIER_WARM, tokens=warm)] if warm else []
    return inference_pb2.GenerateResponse(
        started=inference_pb2.Started(
            cache=types_pb2.CacheReport(match=match, cached=cached, prompt_tokens=20),
            base=types_pb2.AgentVersion(uid="u1", version=2),
            context_remaining=1000,
        )
    )


def delta(text: str, *logprobs: inference_pb2.TokenLogprob, reasoning: str = "") -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(
        delta=inference_pb2.Delta(text=text, token_ids=[1], logprobs=logprobs, reasoning=reasoning),
    )


def finished(
    reason: Any = types_pb2.FINISH_REASON_STOP, tokens: int = 3, *, kept: bool = True
) -> inference_pb2.GenerateResponse:
    event = inference_pb2.Finished(
        reason=reason,
        usage=types_pb2.Usage(
            prompt_tokens=20,
            completion_tokens=tokens,
            cached=[
                types_pb2.TierTokens(tier=types_pb2.TIER_HOT, tokens=7),
                types_pb2.TierTokens(tier=types_pb2.TIER_WARM, tokens=5),
            ],
        ),
        durable=kept,
    )
    event.timings.time_to_first_token.FromMilliseconds(120)
    event.timings.decode.FromMilliseconds(500)
    if kept:
        event.version.CopyFrom(types_pb2.AgentVersion(uid="u1", version=3, revision=REVISION))
    return inference_pb2.GenerateResponse(finished=event)


async def hello(_: inference_pb2.GenerateRequest) -> AsyncIterator[inference_pb2.GenerateResponse]:
    yield started()
    for text in ("Hel", "lo", " 🌍"):
        yield delta(text)
    yield finished()


def script(*turns: Sequence[Any]) -> Callable[[Any], AsyncIterator[Any]]:
    """Turns one after the other, the last again and again: events, errors to raise, and functions to await."""
    left = list(turns)

    async def turn(_: Any) -> AsyncIterator[Any]:
        for what in left.pop(0) if len(left) > 1 else left[0]:
            if isinstance(what, AgentmemError):
                raise what
            if callable(what):
                await what()
            else:
                yield what

    return turn


def for_ever() -> Coroutine[Any, Any, None]:
    return asyncio.sleep(3600)


async def endless(_: Any) -> AsyncIterator[inference_pb2.GenerateResponse]:
    yield started()
    await asyncio.Event().wait()


async def broken(_: Any) -> AsyncIterator[inference_pb2.GenerateResponse]:
    yield started()
    yield delta("half an ans")
    raise Unavailable("the engine died", retry_after=2.0)


async def flood(_: Any) -> AsyncIterator[inference_pb2.GenerateResponse]:
    yield started()
    while True:
        yield delta("x" * 1000)


class ScriptedWorker(inference_pb2_grpc.InferenceServiceServicer):
    """Serves Generate by `script`, records every request with its metadata, and knows agents and models it is given."""

    def __init__(self, socket: str) -> None:
        self.target = f"unix:{socket}"
        self.script: Script = hello
        self.requests: list[Any] = []
        self.metadata: list[dict[str, str]] = []
        self.time_remaining: list[float | None] = []
        self.agents: list[agent_pb2.Agent] = []
        self.page = 2
        """Agents of a page of ListAgents."""
        self.turns: dict[str, agent_pb2.FindAgentResponse] = {}
        """FindAgent's answers by request_id; by content it finds nothing."""
        self.models: list[model_pb2.Model] = [
            model_pb2.Model(model_id="demo", is_default=True, state=model_pb2.MODEL_STATE_LOADED, context_length=4096),
            model_pb2.Model(model_id="org/large", state=model_pb2.MODEL_STATE_REGISTERED),
        ]
        self.on_hub = [model_pb2.HubModel(source="org/large", total_bytes=1, fits=True)]
        self.stages: list[tuple[str, float]] = []
        """LoadModel's progress before it is ready, or before `load_error`."""
        self.freed_bytes = 1
        self.load_error: Exception | None = None
        self.holds: asyncio.Event | None = None
        """An event for which LoadModel waits first."""
        self.file: list[bytes | Exception] = [b"one", b"two"]
        self.error: Exception | None = None
        self.resets = False
        """On: after their script, turns end as a stream that is reset does: CANCELLED, without details."""
        self.aborts = True
        """On: Abort finds the request."""
        self.lost: set[str] = set()
        """RPCs of AgentService that end as if the connection had broken."""
        self.refusals: dict[str, AgentmemError] = {}
        """RPCs of AgentService that are refused."""
        self.running = 0
        self.cancelled = asyncio.Event()
        self.ended = asyncio.Event()
        self.server = GrpcServer(self.target, _services(self))

    @property
    def generated(self) -> list[inference_pb2.GenerateRequest]:
        return [request for request in self.requests if isinstance(request, inference_pb2.GenerateRequest)]

    async def start(self, *, serving: bool = True) -> None:
        await self.server.start()
        await self.server.set_serving(serving)

    async def stop(self) -> None:
        await self.server.stop(0)

    def note(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self.requests.append(request)
        self.metadata.append({k: str(v) for k, v in context.invocation_metadata() or ()})
        self.time_remaining.append(context.time_remaining())
        if self.error is not None:
            raise self.error

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[inference_pb2.GenerateResponse]:
        self.note(request, context)
        self.running += 1
        events = self.script(request)
        try:
            async for event in events:
                yield event
            if self.resets:
                await context.abort(grpc.StatusCode.CANCELLED)
        except BaseException:
            self.cancelled.set()
            raise
        finally:
            self.running -= 1

    async def Prefill(self, request: Any, context: Any) -> inference_pb2.PrefillResponse:
        self.note(request, context)
        return inference_pb2.PrefillResponse(started=started().started, finished=finished().finished)

    async def CountTokens(self, request: Any, context: Any) -> inference_pb2.CountTokensResponse:
        self.note(request, context)
        return inference_pb2.CountTokensResponse(tokens=11, context_length=4096)

    async def Abort(self, request: Any, context: Any) -> inference_pb2.AbortResponse:
        self.note(request, context)
        return inference_pb2.AbortResponse(aborted=self.aborts)


class _Agents:
    """Answers every RPC of AgentService; only those that a test reads have content."""

    def __init__(self, worker: ScriptedWorker) -> None:
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        method = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].methods_by_name.get(name)
        if method is None:
            raise AttributeError(name)
        response = getattr(agent_pb2, method.output_type.name)

        async def unary(request: Any, context: Any) -> Any:
            self._worker.note(request, context)
            await self._fail(name, context)
            return response()

        async def upload(requests: Any, context: Any) -> Any:
            refusal: AgentmemError | None = None
            try:
                # To its end, as the worker does: a client that is cut off learns nothing.
                async for request in requests:
                    try:
                        self._worker.note(request, context)
                    except AgentmemError as error:
                        refusal = error
            finally:  # a cancelled stream just ends here, as a whole one does
                self._worker.ended.set()
            await self._fail(name, context)
            if refusal is not None:
                raise refusal
            return response()

        async def stream(request: Any, context: Any) -> Any:
            self._worker.note(request, context)
            for chunk in self._worker.file:
                if isinstance(chunk, Exception):
                    raise chunk
                yield agent_pb2.ExportAgentResponse(chunk=chunk)

        return upload if method.client_streaming else stream if method.server_streaming else unary

    async def _fail(self, name: str, context: Any) -> None:
        if name in self._worker.refusals:
            raise self._worker.refusals[name]
        if name in self._worker.lost:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    async def FindAgent(self, request: Any, context: Any) -> agent_pb2.FindAgentResponse:
        self._worker.note(request, context)
        return self._worker.turns.get(request.request_id, agent_pb2.FindAgentResponse())

    async def ListAgents(self, request: Any, context: Any) -> agent_pb2.ListAgentsResponse:
        self._worker.note(request, context)
        wanted = [a for a in self._worker.agents if not request.agent_id or a.key.agent_id == request.agent_id]
        if request.page_token and not re.fullmatch("[0-9]{1,9}", request.page_token):
            raise InvalidArgument("page_token", "is none that was given out")
        first = int(request.page_token or 0)
        size = self._worker.page
        more = str(first + size) if first + size < len(wanted) else ""
        return agent_pb2.ListAgentsResponse(agents=wanted[first : first + size], next_page_token=more)

    async def DeleteAgent(self, request: Any, context: Any) -> agent_pb2.DeleteAgentResponse:
        self._worker.note(request, context)
        await self._fail("DeleteAgent", context)
        return agent_pb2.DeleteAgentResponse(deleted=1, freed_bytes=2048)


class _Models(model_pb2_grpc.ModelServiceServicer):
    def __init__(self, worker: ScriptedWorker) -> None:
        self._worker = worker

    async def ListModels(self, request: Any, context: Any) -> model_pb2.ListModelsResponse:
        self._worker.note(request, context)
        return model_pb2.ListModelsResponse(models=self._worker.models)

    async def GetModel(self, request: Any, context: Any) -> model_pb2.GetModelResponse:
        self._worker.note(request, context)
        for model in self._worker.models:
            if model.model_id == request.model_id or (model.is_default and not request.model_id):
                return model_pb2.GetModelResponse(model=model)
        raise NotFound("model", request.model_id, "registered are demo, org/large")

    async def LoadModel(self, request: Any, context: Any) -> Any:
        self._worker.note(request, context)
        if self._worker.holds is not None:
            await self._worker.holds.wait()
        for stage, share in self._worker.stages:
            yield model_pb2.LoadModelResponse(stage=stage, progress=share)
        if self._worker.load_error is not None:
            raise self._worker.load_error
        yield model_pb2.LoadModelResponse(stage="ready", progress=1.0, model=self._worker.models[0])

    async def UnloadModel(self, request: Any, context: Any) -> model_pb2.UnloadModelResponse:
        self._worker.note(request, context)
        return model_pb2.UnloadModelResponse(freed_bytes=self._worker.freed_bytes)

    async def SearchModels(self, request: Any, context: Any) -> model_pb2.SearchModelsResponse:
        self._worker.note(request, context)
        return model_pb2.SearchModelsResponse(models=self._worker.on_hub)

    async def PullModel(self, request: Any, context: Any) -> Any:
        self._worker.note(request, context)
        ready = model_pb2.LoadProgress(stage="ready", share=1.0)
        yield model_pb2.PullModelResponse(progress=ready, model=self._worker.models[0])


def _services(worker: ScriptedWorker) -> Sequence[Any]:
    return [
        ("agentmem.v1.InferenceService", inference_pb2_grpc.add_InferenceServiceServicer_to_server, worker),
        ("agentmem.v1.AgentService", agent_pb2_grpc.add_AgentServiceServicer_to_server, _Agents(worker)),
        ("agentmem.v1.ModelService", model_pb2_grpc.add_ModelServiceServicer_to_server, _Models(worker)),
    ]
