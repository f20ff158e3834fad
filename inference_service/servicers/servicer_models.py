"""ModelService on the worker."""

from typing import Any

from agentmem import paging
from agentmem.v1 import model_pb2, model_pb2_grpc
from inference_service.models.loading import LoadedModel
from inference_service.models.serving import Models

_DTYPE_PREFIX = "mlx.core."


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    """ListModels and GetModel; loading and unloading by request answer UNIMPLEMENTED."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def ListModels(self, request: model_pb2.ListModelsRequest, context: Any) -> model_pb2.ListModelsResponse:
        size = paging.page_size(request.page_size if request.HasField("page_size") else None)
        first, *others = self._models.registered
        names = [first, *sorted(others)]
        start = paging.number(request.page_token) or 0
        page = names[start : start + size]
        following = start + len(page)
        return model_pb2.ListModelsResponse(
            models=[self._describe(name) for name in page],
            next_page_token=paging.token((str(following),)) if following < len(names) else "",
        )

    async def GetModel(self, request: model_pb2.GetModelRequest, context: Any) -> model_pb2.GetModelResponse:
        name = request.model_id or self._models.default
        self._models.check_registered(name)
        return model_pb2.GetModelResponse(model=self._describe(name))

    def _describe(self, name: str) -> model_pb2.Model:
        models = self._models
        model = model_pb2.Model(model_id=name, is_default=name == models.default)
        if models.loaded is not None and models.loaded.model_id == name:
            model.state = model_pb2.MODEL_STATE_LOADED
            model.MergeFrom(_loaded(models.loaded))
        elif name == models.default and models.loaded is None:
            model.state = model_pb2.MODEL_STATE_LOADING
        else:
            model.state = model_pb2.MODEL_STATE_REGISTERED
        return model


def _loaded(model: LoadedModel) -> model_pb2.Model:
    geometry = model.geometry
    return model_pb2.Model(
        context_length=model.context_length,
        fingerprint=model.fingerprint,
        architecture=model.architecture,
        dtype=str(geometry.dtype).removeprefix(_DTYPE_PREFIX),
        kv_bits=geometry.bits,
        kv_group_size=geometry.group_size,
        full_layers=len(geometry.full.layers),
        sliding_layers=len(geometry.sliding.layers) if geometry.sliding else 0,
        sliding_window=(geometry.sliding.window or 0) if geometry.sliding else 0,
        kv_heads=geometry.full.kv_heads,
        k_head_dim=geometry.full.k_dim,
        v_head_dim=geometry.full.v_dim,
        kv_bytes_per_token=geometry.bytes_per_token,
        weight_bytes=model.weight_bytes,
        vocab_size=model.vocab_size,
        tool_parser=model.call_syntax.name if model.call_syntax else "",
        tokenizer_hash=model.tokenizer.hash,
        attention_paths=[
            model_pb2.AttentionPath(
                phase=report.phase, path=report.path, relative_error=report.relative_error, note=report.note
            )
            for report in model.paths
        ],
    )
