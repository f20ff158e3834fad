"""/v1/models, which two dialects have: Anthropic's SDKs are told what they expect, everybody else what OpenAI's do."""

import grpc
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentmem.v1 import model_pb2, model_pb2_grpc
from gateway import upstream
from gateway.anthropic.models import model_info, model_page
from gateway.callers import caller
from gateway.discretion import discreet
from gateway.http.dialects import speaks_anthropic
from gateway.openai.models import model_list, model_object

_PAGE = 1000


class ModelEndpoints:
    """The registered models, asked of the worker each time."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._models = model_pb2_grpc.ModelServiceStub(channel)

    async def list(self, request: Request) -> Response:
        """All models, or the page of them that is asked for."""
        found: list[model_pb2.Model] = []
        token = ""
        while True:
            asked = model_pb2.ListModelsRequest(page_size=_PAGE, page_token=token)
            page: model_pb2.ListModelsResponse = await upstream.result(self._models.ListModels(asked))
            discreet(page, caller())
            found += page.models
            token = page.next_page_token
            if not token:
                break
        return JSONResponse(
            model_page(found, request.query_params) if speaks_anthropic(request.scope) else model_list(found)
        )

    async def get(self, request: Request) -> Response:
        """One model."""
        wanted = model_pb2.GetModelRequest(model_id=request.path_params["id"])
        if not wanted.model_id:  # the contract's word for the default model
            raise HTTPException(404, "name a model after /v1/models/")
        found: model_pb2.GetModelResponse = await upstream.result(self._models.GetModel(wanted))
        discreet(found, caller())
        told = model_info if speaks_anthropic(request.scope) else model_object
        return JSONResponse(told(found.model))
