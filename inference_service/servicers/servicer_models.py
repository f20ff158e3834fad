"""ModelService on the worker."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from agentmem import paging
from agentmem.errors import FailedPrecondition, Unavailable
from agentmem.keys import check_text
from agentmem.v1 import model_pb2, model_pb2_grpc
from inference_service.models.loader import Loader, NotFetched
from inference_service.models.seats import READY, Seat
from inference_service.models.serving import Models
from inference_service.servicers.model_messages import describe, loaded_memory, planned_memory


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    """What is registered and loaded, and loading and unloading by request."""

    def __init__(self, models: Models, loader: Loader) -> None:
        self._models = models
        self._loader = loader

    async def ListModels(self, request: model_pb2.ListModelsRequest, context: Any) -> model_pb2.ListModelsResponse:
        size = paging.page_size(request.page_size if request.HasField("page_size") else None)
        first, *others = self._models.seats
        names = [first, *sorted(others)]
        start = paging.number(request.page_token) or 0
        page = names[start : start + size]
        following = start + len(page)
        return model_pb2.ListModelsResponse(
            models=[self._describe(self._models.seats[name]) for name in page],
            next_page_token=paging.token((str(following),)) if following < len(names) else "",
        )

    async def GetModel(self, request: model_pb2.GetModelRequest, context: Any) -> model_pb2.GetModelResponse:
        seat = self._models.seat(request.model_id or self._models.default)
        problem = ""
        if seat.loaded is None:
            try:
                await self._models.outline(seat.model_id)
            except (NotFetched, Unavailable):  # A load would find out more.
                pass
            except FailedPrecondition as error:
                problem = error.message
        model = self._describe(seat)
        model.error = model.error or problem
        return model_pb2.GetModelResponse(model=model)

    async def LoadModel(
        self, request: model_pb2.LoadModelRequest, context: Any
    ) -> AsyncIterator[model_pb2.LoadModelResponse]:
        seat = self._models.seat(check_text("model_id", request.model_id))
        async with aclosing(self._models.load(seat.model_id)) as stages:
            async for at in stages:
                if at.stage != READY:
                    yield model_pb2.LoadModelResponse(stage=at.stage, progress=at.share)
        yield model_pb2.LoadModelResponse(stage=READY, progress=1.0, model=self._describe(seat))

    async def UnloadModel(self, request: model_pb2.UnloadModelRequest, context: Any) -> model_pb2.UnloadModelResponse:
        seat = self._models.seat(check_text("model_id", request.model_id))
        return model_pb2.UnloadModelResponse(freed_bytes=await self._models.unload(seat.model_id))

    def _describe(self, seat: Seat) -> model_pb2.Model:
        model = describe(seat, default=seat.model_id == self._models.default)
        others = [each.resident() for each in self._models.seats.values() if each.loaded and each is not seat]
        if seat.loaded is not None:
            model.memory.CopyFrom(loaded_memory(seat.loaded, others, self._loader))
        elif seat.outline is not None:
            pinned = [each for each in others if each.pinned]
            model.memory.CopyFrom(planned_memory(seat.outline, pinned, self._loader))
        return model
