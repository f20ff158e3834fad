"""Models in OpenAI's shape, with what Agentmem knows beyond it under `agentmem`."""

from collections.abc import Iterable
from typing import Any

from agentmem.v1 import model_pb2


def model_list(models: Iterable[model_pb2.Model]) -> dict[str, Any]:
    """The answer of GET /v1/models."""
    return {"object": "list", "data": [model_object(model) for model in models]}


def model_object(model: model_pb2.Model) -> dict[str, Any]:
    """One model. `created` is 0: a registered model has no date."""
    return {
        "id": model.model_id,
        "object": "model",
        "created": 0,
        "owned_by": "agentmem",
        "agentmem": {
            "state": model_pb2.ModelState.Name(model.state).removeprefix("MODEL_STATE_").lower(),
            "default": model.is_default,
            "context_length": model.context_length,
            "architecture": model.architecture,
            "dtype": model.dtype,
            "kv_bits": model.kv_bits,
            "kv_bytes_per_token": model.kv_bytes_per_token,
            "tool_parser": model.tool_parser or None,
            "fingerprint": model.fingerprint,
            "error": model.error or None,
        },
    }
