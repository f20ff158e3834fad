"""The HTTP door as one ASGI application."""

import grpc
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentmem.errors import AgentmemError
from agentmem.v1 import model_pb2, model_pb2_grpc
from gateway import upstream
from gateway.callers import Authenticator
from gateway.http.authentication import Authentication
from gateway.http.rim import Rim, error_page, http_error_page
from gateway.http.turns import TurnEndpoint, Turns
from gateway.identity import Finder
from gateway.metrics import GatewayMetrics
from gateway.openai.chat_request import chat_exchange
from gateway.openai.chat_schema import ChatRequest
from gateway.openai.models import model_list, model_object
from gateway.settings import GatewaySettings

INFERENCE_SERVICE = "agentmem.v1.InferenceService"
_PAGE = 1000


class HttpDoor:
    """The routes. `draining` set to True makes /readyz say no, before the listener closes."""

    def __init__(
        self,
        settings: GatewaySettings,
        channel: grpc.aio.Channel,
        metrics: GatewayMetrics,
        authenticator: Authenticator,
    ) -> None:
        self._settings = settings
        self._channel = channel
        self._metrics = metrics
        self._models = model_pb2_grpc.ModelServiceStub(channel)
        self.draining = False
        finder = Finder(channel, metrics, keep=settings.anonymous == "keep", expiry=settings.expiry)
        turns = Turns(channel, finder, settings.max_body_bytes, settings.stream_queue, settings.stall_limit, metrics)
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", TurnEndpoint(turns, ChatRequest, chat_exchange), methods=["POST"]),
                Route("/v1/models", self._list_models),
                Route("/v1/models/{id:path}", self._get_model),
                Route("/healthz", self._alive),
                Route("/readyz", self._ready),
                Route("/metrics", self._metrics_page),
            ],
            middleware=[Middleware(Rim, metrics=metrics), Middleware(Authentication, authenticator=authenticator)],
            exception_handlers={AgentmemError: error_page, HTTPException: http_error_page},
        )
        self.app.router.redirect_slashes = False

    async def _list_models(self, _: Request) -> Response:
        found: list[model_pb2.Model] = []
        token = ""
        while True:
            request = model_pb2.ListModelsRequest(page_size=_PAGE, page_token=token)
            page: model_pb2.ListModelsResponse = await upstream.result(self._models.ListModels(request))
            found += page.models
            token = page.next_page_token
            if not token:
                return JSONResponse(model_list(found))

    async def _get_model(self, request: Request) -> Response:
        wanted = model_pb2.GetModelRequest(model_id=request.path_params["id"])
        if not wanted.model_id:  # the contract's word for the default model
            raise HTTPException(404, "name a model after /v1/models/")
        found: model_pb2.GetModelResponse = await upstream.result(self._models.GetModel(wanted))
        return JSONResponse(model_object(found.model))

    async def _alive(self, _: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def _ready(self, _: Request) -> Response:
        reason = "the gateway is shutting down" if self.draining else await self._worker_unready()
        if reason:
            return JSONResponse({"status": "not ready", "reason": reason}, 503, {"retry-after": "1"})
        return JSONResponse({"status": "ready"})

    async def _worker_unready(self) -> str:
        return await upstream.unready_reason(self._channel, INFERENCE_SERVICE, self._settings.ready_timeout)

    async def _metrics_page(self, _: Request) -> Response:
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)
