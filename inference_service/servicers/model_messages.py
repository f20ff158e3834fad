"""Models as the contract's messages."""

from agentmem.v1 import model_pb2
from inference_service.engine.device import device_bytes
from inference_service.engine.geometry import Geometry
from inference_service.models.loader import Loader
from inference_service.models.loading import LoadedModel, agent_bytes
from inference_service.models.opening import Outline
from inference_service.models.residency import Resident
from inference_service.models.seats import Seat
from inference_service.pool.sizing import TYPICAL_TOKENS, Sizes, agents_that_fit


def describe(seat: Seat, *, default: bool) -> model_pb2.Model:
    """What a registered model is, and what is known of it by now; without its memory."""
    registered = seat.registered
    model = model_pb2.Model(
        model_id=seat.model_id,
        is_default=default,
        state=seat.state,
        error=seat.error,
        source=registered.source,
        adapter=registered.adapter or "",
        pinned=registered.pinned,
    )
    if registered.ttl is not None:
        model.ttl.FromNanoseconds(round(registered.ttl * 1e9))
    if seat.loaded is not None:
        model.MergeFrom(_loaded(seat.loaded))
        model.MergeFrom(_shape(seat.loaded.geometry))
    elif seat.outline is not None:
        model.MergeFrom(_outlined(seat.outline))
        model.MergeFrom(_shape(seat.outline.geometry))
    return model


def loaded_memory(model: LoadedModel, others: list[Resident], loader: Loader) -> model_pb2.ModelMemory:
    """How the device's memory is divided while the model is loaded beside others."""
    divided = _divided(model.geometry, model.context_length, model.memory.sizes, others, loader)
    divided.weight_bytes, divided.activation_bytes = model.weight_bytes, model.activation_bytes
    divided.pool_bytes = model.arenas.nbytes
    return divided


def planned_memory(outline: Outline, pinned: list[Resident], loader: Loader) -> model_pb2.ModelMemory:
    """How it would be divided, were the model loaded beside those that are pinned."""
    needs = loader.needs(outline)
    sizes = loader.sizes(outline, needs, pinned)
    divided = _divided(outline.geometry, outline.context_length, sizes, pinned, loader)
    divided.weight_bytes, divided.activation_bytes = needs.weight_bytes, needs.activation_bytes
    divided.pool_bytes = sizes.pool_bytes(outline.geometry)
    return divided


def _divided(
    geometry: Geometry, context_length: int, sizes: Sizes, others: list[Resident], loader: Loader
) -> model_pb2.ModelMemory:
    tokens = min(context_length, TYPICAL_TOKENS)
    return model_pb2.ModelMemory(
        device_bytes=device_bytes(),
        usable_bytes=loader.limits.usable_bytes,
        batch_bytes=sizes.batch_bytes,
        other_models_bytes=sum(each.taken_bytes for each in others),
        agent_4k_bytes=agent_bytes(geometry, context_length),
        agents_4k=agents_that_fit(sizes.space, geometry, tokens),
        pool_tokens=sizes.tokens,
    )


def _outlined(outline: Outline) -> model_pb2.Model:
    text = outline.text
    return model_pb2.Model(
        context_length=outline.context_length,
        architecture=outline.architecture,
        weight_bytes=outline.weight_bytes,
        vocab_size=outline.vocab_size,
        tool_parser=text.call_syntax.name if text.call_syntax else "",
        tokenizer_hash=text.tokenizer.hash,
    )


def _loaded(model: LoadedModel) -> model_pb2.Model:
    quality = model.quality
    return model_pb2.Model(
        recommended_kv_bits=quality.recommended_bits if quality else 0,
        quantization_kl=quality.kl_4_bits if quality else None,
        quantization_kl_8_bits=quality.kl_8_bits if quality else None,
        context_length=model.context_length,
        fingerprint=model.fingerprint,
        architecture=model.architecture,
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


def _shape(geometry: Geometry) -> model_pb2.Model:
    return model_pb2.Model(
        dtype=geometry.dtype_name,
        kv_bits=geometry.bits,
        kv_group_size=geometry.group_size,
        full_layers=len(geometry.full.layers),
        sliding_layers=len(geometry.sliding.layers) if geometry.sliding else 0,
        sliding_window=(geometry.sliding.window or 0) if geometry.sliding else 0,
        kv_heads=geometry.full.kv_heads,
        k_head_dim=geometry.full.k_dim,
        v_head_dim=geometry.full.v_dim,
        kv_bytes_per_token=geometry.bytes_per_token,
    )
