"""ModelService on the worker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from agentmem import paging
from agentmem.errors import FailedPrecondition, InvalidArgument, Unavailable
from agentmem.load_stages import LoadStage
from agentmem.process.models import is_hub_id
from agentmem.v1 import model_pb2 as pb
from agentmem.v1 import model_pb2_grpc
from agentmem.validation import check_text
from inference_service.engine.calibration import Calibration
from inference_service.engine.device import device_and_version, device_bytes
from inference_service.engine.geometry import Geometry
from inference_service.engine.quality import Quality
from inference_service.hub.candidates import Candidate
from inference_service.hub.searching import HubSearch
from inference_service.models.finding import NotFetched
from inference_service.models.fitting import Resident, agent_bytes
from inference_service.models.loaded import LoadedModel
from inference_service.models.loading import Loader
from inference_service.models.opening import ModelInfo
from inference_service.models.pulled import PulledModels
from inference_service.models.serving import Models
from inference_service.models.slots import ModelSlot, Progress
from inference_service.models.sources import is_directory
from inference_service.pool.memory import TYPICAL_TOKENS, Sizes, agents_that_fit

_FOUND, _MOST_FOUND = 10, 50


def describe(slot: ModelSlot, *, default: bool) -> pb.Model:
    """Return what is known of a model, without its memory."""
    registered = slot.registered
    model = pb.Model(
        model_id=slot.model_id,
        is_default=default,
        state=slot.state,
        error=slot.error,
        source=registered.source,
        adapter=registered.adapter or "",
        pinned=registered.pinned,
    )
    if registered.ttl is not None:
        model.ttl.FromNanoseconds(round(registered.ttl * 1e9))
    if slot.state == pb.MODEL_STATE_LOADING:
        model.progress.CopyFrom(_shown(slot.progress))
    info = slot.loaded or slot.info
    if info is not None:
        model.MergeFrom(_known(info))
    if slot.loaded is not None:
        model.MergeFrom(_measured(slot.loaded))
    return model


def _on_hub(found: Candidate, registered: bool) -> pb.HubModel:
    listing, judged = found.listing, found.fit
    model = pb.HubModel(
        source=found.model_id,
        downloads=found.found.downloads,
        fits=found.fits,
        fits_now=found.fits_now,
        problem=found.problem,
        registered=registered,
    )
    if listing is not None:
        model.total_bytes, model.missing_bytes, model.gated = listing.total, listing.missing, listing.gated
    if judged is not None:
        model.weight_bytes, model.activation_bytes = judged.needs.weight_bytes, judged.needs.activation_bytes
        model.context_length, model.agents_4k = judged.context_length, judged.agents
    return model


def _shown(progress: Progress) -> pb.LoadProgress:
    shown = pb.LoadProgress(stage=progress.stage, share=progress.share, once=progress.stage.once)
    if (seconds := progress.remaining) is not None:
        shown.remaining.FromNanoseconds(round(seconds * 1e9))
    return shown


def _divided(
    info: ModelInfo, sizes: Sizes, activation_bytes: int, others: list[Resident], loader: Loader
) -> pb.ModelMemory:
    return pb.ModelMemory(
        device_bytes=device_bytes(),
        usable_bytes=loader.limits.usable_bytes,
        weight_bytes=info.weight_bytes,
        activation_bytes=activation_bytes,
        pool_bytes=sizes.pool_bytes(info.geometry),
        batch_bytes=sizes.batch_bytes,
        other_models_bytes=sum(each.taken_bytes for each in others),
        agent_4k_bytes=agent_bytes(info.geometry, info.context_length),
        agents_4k=agents_that_fit(sizes.space, info.geometry, min(info.context_length, TYPICAL_TOKENS)),
        pool_tokens=sizes.tokens,
    )


def _known(info: ModelInfo) -> pb.Model:
    geometry = info.geometry
    return pb.Model(
        context_length=info.context_length,
        architecture=info.architecture,
        weight_bytes=info.weight_bytes,
        vocab_size=info.vocab_size,
        tool_parser=info.call_syntax.name if info.call_syntax else "",
        tokenizer_hash=info.tokenizer.hash,
        dtype=geometry.dtype_name,
        kv_bits=str(geometry.format),
        kv_scheme=geometry.format.scheme,
        kv_group_size=geometry.format.group_size,
        full_layers=sum(len(group.layers) for group in geometry.full_groups),
        sliding_layers=len(geometry.sliding.layers) if geometry.sliding else 0,
        sliding_window=geometry.window,
        kv_heads=geometry.full.kv_heads,
        k_head_dim=geometry.full.k_dim,
        v_head_dim=geometry.full.v_dim,
        kv_bytes_per_token=geometry.bytes_per_token,
        recurrent_layers=len(geometry.states.layers) if geometry.states else 0,
        state_bytes=geometry.state_bytes,
        sampling=info.sampling.defaults,
    )


def _measured(model: LoadedModel) -> pb.Model:
    quality = model.quality
    return pb.Model(
        kv_bits_measured=_by_bits(quality, model.geometry) if quality else (),
        recommended_kv_bits=quality.recommended if quality else "",
        kv_bits_reason=model.setup.reason,
        calibration=_calibration(model.calibration) if model.calibration else None,
        fingerprint=model.fingerprint,
        device=device_and_version(),
        unmeasured=not model.setup.final,
        attention_paths=[
            pb.AttentionPath(
                phase=report.phase, path=report.path, relative_error=report.relative_error, note=report.note
            )
            for report in model.paths
        ],
    )


def _calibration(calibration: Calibration) -> pb.Calibration:
    return pb.Calibration(
        digest=calibration.digest,
        largest_k_means=[float(abs(means.k).max()) for means in calibration.layers],
        largest_v_means=[float(abs(means.v).max()) for means in calibration.layers],
    )


def _by_bits(quality: Quality, geometry: Geometry) -> list[pb.KVBitsMeasurement]:
    return [
        pb.KVBitsMeasurement(
            kv_bits=bits,
            kl_divergence=kl.mean,
            kl_divergence_p99=kl.tail,
            bytes_per_token=replace(geometry, format=geometry.format.with_bits(bits)).bytes_per_token,
            good=quality.is_good(bits),
        )
        for bits, kl in quality.divergences.items()
    ]


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    def __init__(self, models: Models, loader: Loader, hub: HubSearch, pulled: PulledModels) -> None:
        self._models = models
        self._loader = loader
        self._hub = hub
        self._pulled = pulled

    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        size = paging.asked_size(request)
        first, *others = self._models.slots
        start = paging.number(request.page_token) or 0
        found = [first, *sorted(others)][start : start + size + 1]
        page, following = paging.cut(found, size, lambda _: (str(start + size),))
        models = [self._describe(self._models.slots[name]) for name in page]
        return pb.ListModelsResponse(models=models, next_page_token=following)

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:
        slot = self._models.slot(request.model_id or self._models.default)
        problem = ""
        if slot.loaded is None:
            try:
                await self._models.info(slot.model_id)
            except (NotFetched, Unavailable):  # A load would find out more.
                pass
            except FailedPrecondition as error:
                problem = error.message
        model = self._describe(slot)
        model.error = model.error or problem
        return pb.GetModelResponse(model=model)

    async def LoadModel(self, request: pb.LoadModelRequest, context: Any) -> AsyncIterator[pb.LoadModelResponse]:
        slot = self._models.slot(check_text("model_id", request.model_id))
        async with aclosing(self._models.load(slot.model_id)) as stages:
            async for at in stages:
                yield pb.LoadModelResponse(stage=at.stage, progress=at.share)
        yield pb.LoadModelResponse(stage=LoadStage.READY, progress=1.0, model=self._describe(slot))

    async def UnloadModel(self, request: pb.UnloadModelRequest, context: Any) -> pb.UnloadModelResponse:
        slot = self._models.slot(check_text("model_id", request.model_id))
        return pb.UnloadModelResponse(freed_bytes=await self._models.unload(slot.model_id))

    async def SearchModels(self, request: pb.SearchModelsRequest, context: Any) -> pb.SearchModelsResponse:
        limit = request.limit if request.HasField("limit") else _FOUND
        if not 1 <= limit <= _MOST_FOUND:
            raise InvalidArgument("limit", f"must be from 1 to {_MOST_FOUND}")
        query = check_text("query", request.query, allow_empty=True)
        found = await self._hub.find(query.split(), limit)
        return pb.SearchModelsResponse(models=[_on_hub(each, each.model_id in self._models.slots) for each in found])

    async def PullModel(self, request: pb.PullModelRequest, context: Any) -> AsyncIterator[pb.PullModelResponse]:
        model_id = check_text("model_id", request.model_id)
        if not (configured := model_id in self._models.slots) and not is_hub_id(model_id):
            raise InvalidArgument("model_id", f"{model_id!r} is no hub id, which would be OWNER/NAME")
        if not configured and is_directory(model_id):
            raise InvalidArgument("model_id", f"{model_id!r} is a directory here; there is nothing to download")
        async with aclosing(self._models.pull(model_id)) as stages:
            async for at in stages:
                yield pb.PullModelResponse(progress=_shown(at))
        if not configured or model_id in self._pulled.unkept:
            await asyncio.to_thread(self._pulled.keep, model_id)
        ready = pb.LoadProgress(stage=LoadStage.READY, share=1.0)
        yield pb.PullModelResponse(progress=ready, model=self._describe(self._models.slot(model_id)))

    def _describe(self, slot: ModelSlot) -> pb.Model:
        model = describe(slot, default=slot.model_id == self._models.default)
        others = [each.resident() for each in self._models.slots.values() if each.loaded and each is not slot]
        if (loaded := slot.loaded) is not None:
            divided = _divided(loaded, loaded.memory.sizes, loaded.activation_bytes, others, self._loader)
            model.memory.CopyFrom(divided)
            model.wired_bytes = self._loader.wiring.part(slot.model_id)
        elif slot.info is not None:  # as if it were loaded beside pinned ones
            pinned, needs = [each for each in others if each.pinned], self._loader.needs(slot.info)
            sizes = self._loader.sizes(slot.info, needs, pinned)
            model.memory.CopyFrom(_divided(slot.info, sizes, needs.activation_bytes, pinned, self._loader))
        return model
