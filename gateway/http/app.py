"""The HTTP server as one ASGI application."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from agentmem.errors import AgentmemError
from agentmem.v1 import model_pb2
from gateway.agent_finder import Finder
from gateway.api.chat import ChatRequest, chat_exchange
from gateway.api.completions import CompletionRequest, completion_exchange
from gateway.api.messages import messages_exchange
from gateway.api.messages_schema import MessagesRequest
from gateway.api.models import anthropic_model, anthropic_page, openai_list, openai_model
from gateway.api.reports import load_dict
from gateway.api.responses import response_exchange
from gateway.api.responses_schema import ResponseRequest
from gateway.edge.admission import Admission
from gateway.edge.callers import Authenticator
from gateway.http.guards import Guard
from gateway.http.history import History
from gateway.http.kept_responses import KeptResponses
from gateway.http.middleware import (
    ALIVE,
    HEALTH,
    METRICS,
    READY,
    ROOT,
    AccessLogMiddleware,
    error_page,
    speaks_anthropic,
)
from gateway.http.openapi import document
from gateway.http.overview import Overview
from gateway.http.requests import AGENT_HEADER, WARNING_HEADER
from gateway.http.rest import rest_routes
from gateway.http.turns import TurnEndpoint, Turns
from gateway.metrics import GatewayMetrics
from gateway.running import RunningTurns
from gateway.settings import GatewaySettings
from gateway.ui.files import PAGE, page_routes
from gateway.worker import Service

_CORS: Final[Any] = {
    "allow_methods": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
    "allow_headers": ["*"],
    "allow_private_network": True,
    "expose_headers": [
        "x-request-id",
        "request-id",
        "traceparent",
        AGENT_HEADER.lower(),
        WARNING_HEADER.lower(),
        "retry-after",
    ],
}
"""Without credentials: a page has a key, and sends it itself."""

_PAGE: Final = 1000
"""More models than a server has."""


class HttpServer:
    """`draining` set to True makes /readyz say no, before the listener closes."""

    def __init__(
        self,
        settings: GatewaySettings,
        worker: RunningTurns,
        metrics: GatewayMetrics,
        authenticator: Authenticator,
        admission: Admission,
        unready: Callable[[], str],
        loading: Callable[[], model_pb2.Model | None],
        routes: Iterable[Route] = (),
        own: Mapping[str, Service] = MappingProxyType({}),
    ) -> None:
        """`unready` returns why no turn could run, or nothing, and `loading` the model that is waited for; `own` are
        services of this process, by their full names.
        """
        self._worker = worker
        self._metrics = metrics
        self._unready = unready
        self._loading = loading
        self._page = settings.ui
        self.draining = False
        self.history = History(settings)
        finder = Finder(worker, keep=settings.anonymous == "keep", expiry=settings.expiry)
        kept = KeptResponses(worker)
        turns = Turns(worker, finder, settings, metrics, kept)
        origins = settings.cors_origin  # CORS is outermost: web pages can read errors, too
        # Web pages are shut out of a server without keys that only this machine reaches.
        local = not settings.asks_for_keys and "http" not in settings.public
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", TurnEndpoint(turns, ChatRequest, chat_exchange), methods=["POST"]),
                Route("/v1/completions", TurnEndpoint(turns, CompletionRequest, completion_exchange), methods=["POST"]),
                Route("/v1/responses", TurnEndpoint(turns, ResponseRequest, response_exchange), methods=["POST"]),
                Route("/v1/responses/{id:path}", kept.serve, methods=["GET", "DELETE"]),
                Route("/v1/messages", TurnEndpoint(turns, MessagesRequest, messages_exchange), methods=["POST"]),
                Route("/v1/messages/count_tokens", turns.count, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/models/{id:path}", self._model),
                *rest_routes(turns, own),
                Route("/v1/overview/history", self.history.serve),
                Route("/v1/overview", Overview(settings, metrics.registry, worker, loading).serve),
                *routes,
                *(page_routes() if settings.ui else []),
                Route(ALIVE, self._alive),
                *(Route(path, self._ready) for path in (READY, HEALTH)),
                Route(ROOT, self._root),
                Route(METRICS, self._metrics_page),
                Route("/openapi.json", _openapi),
            ],
            middleware=[
                *([Middleware(CORSMiddleware, allow_origins=origins, **_CORS)] if origins else []),
                Middleware(AccessLogMiddleware, metrics=metrics),
                Middleware(
                    Guard,
                    authenticator=authenticator,
                    admission=admission,
                    allowed=settings.allowed_host if local else None,
                ),
            ],
            exception_handlers={AgentmemError: error_page, HTTPException: error_page},
        )
        self.app.router.redirect_slashes = False

    async def _alive(self, _: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def _ready(self, _: Request) -> Response:
        if not (reason := self.unready()):
            return JSONResponse({"status": "ready"})
        model = self._loading()
        loading = {"loading": load_dict(model)} if model is not None and not self.draining else {}
        return JSONResponse({"status": "not ready", "reason": reason, **loading}, 503, {"retry-after": "1"})

    def unready(self) -> str:
        return "the gateway is shutting down" if self.draining else self._unready()

    async def _root(self, request: Request) -> Response:
        """Send a browser to the page."""
        if self._page and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(PAGE.removeprefix("/"), 307)  # relative: a proxy may have it below a path
        return JSONResponse({"name": "agentmem", "openai": "/v1", "anthropic": "/", "routes": "/openapi.json"})

    async def _models(self, request: Request) -> Response:
        """In Anthropic's shape for its SDKs, else in OpenAI's."""
        found: model_pb2.ListModelsResponse = await self._worker.call(model_pb2.ListModelsRequest(page_size=_PAGE))
        if speaks_anthropic(request.scope):
            return JSONResponse(anthropic_page(found.models, request.query_params))
        return JSONResponse(openai_list(found.models))

    async def _model(self, request: Request) -> Response:
        wanted = model_pb2.GetModelRequest(model_id=request.path_params["id"])
        if not wanted.model_id:  # the contract's word for the default model
            raise HTTPException(404, "name a model after /v1/models/")
        found: model_pb2.GetModelResponse = await self._worker.call(wanted)
        describe = anthropic_model if speaks_anthropic(request.scope) else openai_model
        return JSONResponse(describe(found.model))

    async def _metrics_page(self, _: Request) -> Response:
        page = await asyncio.to_thread(generate_latest, self._metrics.registry)  # some ms, in which tokens would wait
        return Response(page, media_type=CONTENT_TYPE_LATEST)


async def _openapi(_: Request) -> Response:
    return JSONResponse(await asyncio.to_thread(document))
