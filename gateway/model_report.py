"""What Agentmem knows of a model beyond any dialect's fields, as JSON: the same for every door and the command line."""

import math

from agentmem.v1 import model_pb2
from gateway.enums import short_name
from gateway.exchange import Json


def model_report(model: model_pb2.Model) -> Json:
    """Its state, context, KV, memory and quality, and why it cannot be served, if so. Bytes, tokens, seconds, nats.

    What is not known is null: much of a model that was never looked at, and `memory` until its files are here.
    """
    return {
        "state": state_name(model),
        "default": model.is_default,
        "pinned": model.pinned,
        "ttl": model.ttl.ToTimedelta().total_seconds() if model.HasField("ttl") else None,
        "source": model.source or None,
        "adapter": model.adapter or None,
        "context_length": model.context_length,
        "architecture": model.architecture,
        "dtype": model.dtype,
        "kv_bits": model.kv_bits,
        "recommended_kv_bits": model.recommended_kv_bits or None,
        "quantization_kl": _number(model, "quantization_kl"),
        "quantization_kl_8_bits": _number(model, "quantization_kl_8_bits"),
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "weight_bytes": model.weight_bytes,
        "memory": memory_figures(model.memory) if model.HasField("memory") else None,
        "tool_parser": model.tool_parser or None,
        "fingerprint": model.fingerprint,
        "error": model.error or None,
    }


def memory_figures(memory: model_pb2.ModelMemory) -> Json:
    """The arithmetic of a model's memory, by the contract's names."""
    return {field.name: getattr(memory, field.name) for field in model_pb2.ModelMemory.DESCRIPTOR.fields}


def state_name(model: model_pb2.Model) -> str:
    """ "registered", "loading", "loaded", "draining" or "failed"."""
    return short_name(model_pb2.ModelState.DESCRIPTOR, model.state)


def _number(model: model_pb2.Model, name: str) -> float | str | None:
    """A number that may be absent; one that JSON has no number for is spelled as protobuf's JSON does."""
    if not model.HasField(name):  # type: ignore[arg-type]
        return None
    value: float = getattr(model, name)
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
