"""What Agentmem knows of a model beyond any dialect's fields, as JSON."""

from agentmem.v1 import model_pb2
from gateway.enums import short_name
from gateway.exchange import Json


def model_report(model: model_pb2.Model) -> Json:
    """Its state, context, KV and why it cannot be served, if so."""
    return {
        "state": state_name(model),
        "default": model.is_default,
        "context_length": model.context_length,
        "architecture": model.architecture,
        "dtype": model.dtype,
        "kv_bits": model.kv_bits,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "tool_parser": model.tool_parser or None,
        "fingerprint": model.fingerprint,
        "error": model.error or None,
    }


def state_name(model: model_pb2.Model) -> str:
    """ "registered", "loading", "loaded", "draining" or "failed"."""
    return short_name(model_pb2.ModelState.DESCRIPTOR, model.state)
