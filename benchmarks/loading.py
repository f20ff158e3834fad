"""A model loaded without a worker around it, for benchmarks and tests."""

from dataclasses import replace
from pathlib import Path

from agentmem.kv.hints import TurnHints
from inference_service.engine.calibrating import TOKENS, calibrate
from inference_service.engine.device import on_cuda, usable_bytes
from inference_service.engine.product_speeds import ProductSpeeds
from inference_service.engine.quality import other_text
from inference_service.engine.quantization import PLAIN
from inference_service.models.capability import QuantizationSettings
from inference_service.models.finding import ATTENTION
from inference_service.models.fingerprint import ContentHashes, model_fingerprint
from inference_service.models.fitting import needs_of
from inference_service.models.kv_setup import KVSetup
from inference_service.models.loaded import LoadedModel, OpenedModel, read_weights, take_memory
from inference_service.models.opening import ModelSpec, open_network, open_text
from inference_service.models.proof import prove
from inference_service.pool.memory import sizes


def load(
    model_id: str,
    source: str,
    *,
    dtype: str = "auto",
    quantization: QuantizationSettings | None = None,
    pool_bytes: int | None = None,
    batch_bytes: int | None = None,
    hashes: ContentHashes,
    calibration_tokens: int = TOKENS,
    speeds: ProductSpeeds | None = None,
) -> LoadedModel:
    """Load a model, alone on the device. Of products only `speeds` are measured. Engine thread. Raises
    FailedPrecondition.
    """
    spec = ModelSpec(model_id, Path(source), dtype=dtype, quantization=quantization or QuantizationSettings())
    info, network = open_network(spec, open_text(spec), ATTENTION)
    for _ in read_weights(info, network):
        pass
    info, paths, kernels, _ = prove(info, network, speeds)
    free, arrays = usable_bytes() - info.weight_bytes, not on_cuda()
    memory = sizes(free, info.geometry, info.context_length, pool_bytes, arrays=arrays)
    if batch_bytes is not None and arrays:
        memory = replace(memory, batch_bytes=batch_bytes)
    needs = replace(needs_of(info, info.context_length, usable_bytes(), pool_bytes), activation_bytes=0)
    opened = OpenedModel(info, network, model_fingerprint(spec, info.geometry.dtype_name, hashes), needs)
    text = other_text(info.tokenizer, calibration_tokens)
    calibration = calibrate(network, text, info.geometry) if info.geometry.format.scheme != PLAIN else None
    loaded = take_memory(opened, paths, kernels, KVSetup(info.geometry.format, calibration), memory, 0, TurnHints())
    loaded.prepare()
    return loaded
