"""Our errors in Anthropic's shape: {"type": "error", "error": {"type", "message"}, "request_id"}."""

import re
from typing import Final

from agentmem import errors
from gateway.exchange import Json

OVERLOADED: Final = 529

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_FIELDS: Final = {
    "key.model_id": "model",
    "model_id": "model",
    "key.agent_id": "X-Agent-ID",
    "template_time": "X-Agent-Template-Time",
    "request_id": "Idempotency-Key",
    "memory_mode": "X-Agent-Memory",
    "label": "metadata.user_id",
    "json_schema": "output_config.format.schema",
    "tool_calls": "tools",
}
_STOP: Final = re.compile(r"^stop(?=$|\[)")
_MESSAGES: Final = re.compile(r"^messages\.messages\b.*")


def status(error: errors.AgentmemError) -> int:
    """The HTTP status: Anthropic's own where we cannot answer now, the table's for everything else."""
    return OVERLOADED if isinstance(error, errors.Unavailable) else error.http_status


def error_body(error: errors.AgentmemError, request_id: str = "") -> Json:
    """The JSON that tells of `error`."""
    message = error.message
    if isinstance(error, errors.InvalidArgument):
        message = f"{_field(error.field)}: {error.problem}"
    return http_error_body(error.http_status, message, request_id)


def http_error_body(status: int, message: str, request_id: str = "") -> Json:
    """The JSON that tells of an error with a status of HTTP."""
    fallback = "api_error" if status >= 500 else "invalid_request_error"
    body: Json = {"type": "error", "error": {"type": _TYPES.get(status, fallback), "message": message}}
    return {**body, "request_id": request_id} if request_id else body


def _field(field: str) -> str:
    """The dialect's name for a field of the contract, whose messages are others than the dialect's."""
    named = _FIELDS.get(field) or _MESSAGES.sub("messages", field.removeprefix("sampling."))
    named = named.replace("messages.tools_json", "tools")
    return _STOP.sub("stop_sequences", named)
