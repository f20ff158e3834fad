"""Models as /v1/models describes them; under `agentmem` each is as REST has it."""

from collections.abc import Iterable, Sequence
from typing import Final

from agentmem.v1 import model_pb2
from gateway.api.contract_json import to_json
from gateway.api.validation import Json

_NO_DATE: Final = "1970-01-01T00:00:00Z"
"""A registered model has no date."""


def openai_list(models: Iterable[model_pb2.Model]) -> Json:
    return {"object": "list", "data": [openai_model(model) for model in models]}


def openai_model(model: model_pb2.Model) -> Json:
    return {
        "id": model.model_id,
        "object": "model",
        "created": 0,
        "owned_by": "agentmem",
        "agentmem": to_json(model),
    }


def anthropic_page(models: Sequence[model_pb2.Model]) -> Json:
    """A registry has a handful of models: one page."""
    return {
        "data": [anthropic_model(model) for model in models],
        "has_more": False,
        "first_id": models[0].model_id if models else None,
        "last_id": models[-1].model_id if models else None,
    }


def anthropic_model(model: model_pb2.Model) -> Json:
    context = model.context_length or None
    return {
        "type": "model",
        "id": model.model_id,
        "display_name": model.model_id,
        "created_at": _NO_DATE,
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
        "agentmem": to_json(model),
    }
