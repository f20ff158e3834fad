"""JSON Schemas of answers that no pydantic model describes, and of errors. They say what is always there."""

from typing import Final

from agentmem.v1 import model_pb2
from gateway.api.validation import Json

ANY: Final[Json] = {"type": "object"}

_STRING: Final[Json] = {"type": "string"}
_COUNT: Final[Json] = {"type": "integer", "minimum": 0}


def _object(**properties: Json) -> Json:
    """Return an object that has these and may have more."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _either(*types: str) -> Json:
    return {"type": list(types)}


def _constant(value: str) -> Json:
    return {"const": value}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


_KL: Final[Json] = {"anyOf": [{"type": "number", "minimum": 0}, {"enum": [None, "Infinity", "NaN"]}]}
_MEMORY: Final = _object(**{field.name: _COUNT for field in model_pb2.ModelMemory.DESCRIPTOR.fields})

MODEL: Final = _object(
    id=_STRING,
    object=_constant("model"),
    created=_COUNT,
    owned_by=_STRING,
    agentmem=_object(
        state={"enum": ["registered", "loading", "loaded", "draining", "failed"]},
        default={"type": "boolean"},
        pinned={"type": "boolean"},
        ttl=_either("number", "null"),
        source=_either("string", "null"),
        adapter=_either("string", "null"),
        context_length=_COUNT,
        architecture=_STRING,
        dtype=_STRING,
        kv_bits=_COUNT,
        recommended_kv_bits={"enum": [None, 4, 8]},
        quantization_kl=_KL,
        quantization_kl_8_bits=_KL,
        kv_bytes_per_token=_COUNT,
        weight_bytes=_COUNT,
        memory={"anyOf": [_MEMORY, {"type": "null"}]},
        tool_parser=_either("string", "null"),
        fingerprint=_STRING,
        error=_either("string", "null"),
    ),
)
MODELS: Final = _object(object=_constant("list"), data=_list(MODEL))

_REPORT: Final = _object(
    agent_id=_either("string", "null"),
    match=_STRING,
    cached={"type": "object", "additionalProperties": _COUNT},
    miss_reason=_either("string", "null"),
    snapshot_version=_either("integer", "null"),
    context_remaining=_COUNT,
    appended={"type": "boolean"},
    dropped_tokens=_COUNT,
    context_trim=_either("object", "null"),
    warning=_either("string", "null"),
    version=_either("object", "null"),
    durable={"type": "boolean"},
    replayed={"type": "boolean"},
    timings={"type": "object", "additionalProperties": {"type": "number"}},
)

CHAT_COMPLETION: Final = _object(
    id=_STRING,
    object=_constant("chat.completion"),
    created=_COUNT,
    model=_STRING,
    choices=_list(
        _object(
            index=_COUNT,
            message=_object(role=_constant("assistant"), content=_either("string", "null"), refusal={"type": "null"}),
            logprobs=_either("object", "null"),
            finish_reason=_STRING,
        )
    ),
    usage=_object(
        prompt_tokens=_COUNT,
        completion_tokens=_COUNT,
        total_tokens=_COUNT,
        prompt_tokens_details=_object(cached_tokens=_COUNT),
        completion_tokens_details=_object(reasoning_tokens=_COUNT),
    ),
    agentmem=_REPORT,
)

EVENT: Final = _object(data=_STRING)
"""A server-sent event; its data is JSON, or a word of the dialect."""

NAMED_EVENT: Final = _object(event={"enum": ["started", "delta", "finished", "error"]}, data=_STRING)
"""An event of REST's Generate; `error` is the last one where there is no `finished`."""

TOKENS: Final = _object(input_tokens={"type": "integer"})
STATUS: Final = _object(status=_STRING)
UNREADY: Final = _object(status=_STRING, reason=_STRING)

OPENAI_ERROR: Final = _object(
    error=_object(message=_STRING, type=_STRING, param=_either("string", "null"), code=_either("string", "null"))
)
ANTHROPIC_ERROR: Final = _object(type=_constant("error"), error=_object(type=_STRING, message=_STRING))
