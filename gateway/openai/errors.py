"""Our errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

import re
from collections.abc import Callable
from typing import Any

from agentmem import errors

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    409: "conflict_error",
    429: "rate_limit_error",
    499: "request_cancelled",
    503: "overloaded_error",
    504: "timeout_error",
}
_PARAMS = {
    "tool_calls": "tools",
    "key.model_id": "model",
    "model_id": "model",
    "key.agent_id": "X-Agent-ID",
    "template_time": "X-Agent-Template-Time",
    "request_id": "Idempotency-Key",
    "memory_mode": "X-Agent-Memory",
    "json_schema": "response_format",
    "messages.template_arguments_json": "chat_template_kwargs",
    "body": None,
    "request": None,
}
_RESPONSE_PARAMS = {
    "tool_calls": "tools",
    "messages": "input",
    "append": "input",
    "max_tokens": "max_output_tokens",
    "json_schema": "text.format",
}


def _param(field: str) -> str | None:
    """The dialect's name for a field of the contract."""
    if field in _PARAMS:
        return _PARAMS[field]
    field = re.sub(r"^messages\.messages", "messages", field.removeprefix("sampling."))
    return re.sub(r"^messages\.tools_json", "tools", field).removesuffix("_json")


def completion_param(field: str) -> str | None:
    """The name of a field in /v1/completions."""
    return "prompt" if _outermost(field) == "token_ids" else _param(field)


def response_param(field: str) -> str | None:
    """The name of a field in /v1/responses. Places in the contract's messages are not those of the input's items."""
    if ".tools_json" in field:
        return f"tools{field.partition('.tools_json')[2]}"
    return _RESPONSE_PARAMS.get(_outermost(field)) or _param(field)


def _outermost(field: str) -> str:
    return re.split(r"[.\[]", field, maxsplit=1)[0]


def error_body(error: errors.AgentmemError, named: Callable[[str], str | None] = _param) -> dict[str, Any]:
    """The JSON that tells of `error`; `named` gives the caller's name for a field of the contract, if there is one."""
    fallback = "server_error" if error.http_status >= 500 else "invalid_request_error"
    param: str | None = None
    message = error.message
    code = error.code.name.lower()
    if isinstance(error, errors.InvalidArgument):
        param = named(error.field)
        message = f"{param or error.field}: {error.problem}"
    elif isinstance(error, errors.NotFound) and error.kind == "model":
        param, code = "model", "model_not_found"
    elif isinstance(error, errors.NotFound) and error.kind == "response":
        param, code = "previous_response_id", "previous_response_not_found"
    kind = _TYPES.get(error.http_status, fallback)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def http_error_body(status: int, detail: str) -> dict[str, Any]:
    """The JSON that tells of an error of HTTP itself."""
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(status)
    return {"error": {"message": detail, "type": "invalid_request_error", "param": None, "code": code}}
