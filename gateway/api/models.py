"""Models as /v1/models describes them; under `agentmem` each is as REST has it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from agentmem.errors import InvalidArgument
from agentmem.v1 import model_pb2
from gateway.api.contract_json import to_json
from gateway.api.validation import Json

DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 1000
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


def anthropic_page(models: Sequence[model_pb2.Model], query: Mapping[str, str]) -> Json:
    """At most `limit`, after `after_id` or before `before_id`. Raises InvalidArgument."""
    limit, found = _limit(query.get("limit", str(DEFAULT_LIMIT))), list(models)
    if "after_id" in query and "before_id" in query:
        raise InvalidArgument("before_id", "contradicts after_id; give one of them")
    if "before_id" in query:
        found = found[: _place(found, query, "before_id")]
        page = found[-limit:]
    else:
        found = found[_place(found, query, "after_id") + 1 :] if "after_id" in query else found
        page = found[:limit]
    return {
        "data": [anthropic_model(model) for model in page],
        "has_more": len(found) > len(page),
        "first_id": page[0].model_id if page else None,
        "last_id": page[-1].model_id if page else None,
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


def _limit(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 4 and 1 <= int(value) <= MAX_LIMIT):
        raise InvalidArgument("limit", f"must be a number from 1 to {MAX_LIMIT}")
    return int(value)


def _place(models: Sequence[model_pb2.Model], query: Mapping[str, str], name: str) -> int:
    for place, model in enumerate(models):
        if model.model_id == query[name]:
            return place
    raise InvalidArgument(name, "is not the id of a model")
