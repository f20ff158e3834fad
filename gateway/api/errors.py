"""A prompt that is too long is said in the words by which frameworks know it."""

import re
from dataclasses import dataclass
from typing import Final

from agentmem import errors
from gateway.api.validation import BadField, Json

_OVERLOADED: Final = 529
"""Anthropic's status where no answer is possible now."""

_TYPES: Final[dict[int, tuple[str | None, str | None]]] = {
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: (None, "not_found_error"),
    409: ("conflict_error", None),
    413: (None, "request_too_large"),
    429: ("rate_limit_error", "rate_limit_error"),
    499: ("request_cancelled", None),
    503: ("overloaded_error", "overloaded_error"),
    504: ("timeout_error", "timeout_error"),
}
"""OpenAI's type and Anthropic's by HTTP status. None: by the class of the status."""

_Names = tuple[tuple[str, str | None], ...]
"""Patterns of the contract's fields, and the caller's names for them; None: nothing of the caller's. The first
counts.
"""

_COMMON: Final[_Names] = (
    ("tool_calls$", "tools"),
    (r"(key\.)?model_id$", "model"),
    (r"key\.agent_id$", "X-Agent-ID"),
    ("template_time$", "X-Agent-Template-Time"),
    ("request_id$", "Idempotency-Key"),
    ("memory_mode$", "X-Agent-Memory"),
    (r"(append\.)?messages\.tools_json", "tools"),
    (r"(append\.)?messages\.template_arguments_json$", "chat_template_kwargs"),
    (r"sampling\.", ""),
)
_OPENAI: Final[_Names] = (
    *_COMMON,
    ("json_schema$", "response_format"),
    (r"messages\.(messages.*?)(_json)?$", r"\1"),
    ("(body|request)$", None),
)
_RESPONSES: Final[_Names] = (
    *_COMMON,
    (r"(messages|append)\b.*", "input"),
    ("max_tokens$", "max_output_tokens"),
    (r"json_schema\b.*", "text.format"),
    *_OPENAI,
)
_ANTHROPIC: Final[_Names] = (
    *_COMMON,
    ("label$", "metadata.user_id"),
    ("json_schema$", "output_config.format.schema"),
    (r"messages\.messages\b.*", "messages"),
    (r"stop(?=$|\[)", "stop_sequences"),
)


@dataclass(frozen=True)
class Dialect:
    """OpenAI's endpoints and REST."""

    names: _Names = ()

    def name(self, field: str) -> str | None:
        for pattern, name in self.names:
            if re.match(pattern, field):
                return name if name is None else re.sub(pattern, name, field, count=1)
        return field

    def param(self, error: errors.InvalidArgument) -> str | None:
        return error.field if isinstance(error, BadField) else self.name(error.field)

    def status(self, error: errors.AgentmemError) -> int:
        return error.http_status

    def body(self, error: errors.AgentmemError, request_id: str = "") -> Json:  # noqa: ARG002 - Anthropic's has it
        message, param, code = _message(error), None, error.code.name.lower()
        if isinstance(error, errors.InvalidArgument):
            param = self.param(error)
            message = error.about(param or error.field)
        elif isinstance(error, errors.NotFound) and error.kind == "model":
            param, code = "model", "model_not_found"
        elif isinstance(error, errors.NotFound) and error.kind == "response":
            param, code = "previous_response_id", "previous_response_not_found"
        elif isinstance(error, errors.ContextExceeded):
            code = "context_length_exceeded"
        kind = _TYPES.get(error.http_status, (None, None))[0]
        kind = kind or ("server_error" if error.http_status >= 500 else "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def http_body(self, status: int, detail: str, request_id: str = "") -> Json:  # noqa: ARG002
        """For errors that only HTTP knows: no such route or method, a body too large."""
        code = {404: "unknown_url", 405: "method_not_allowed"}.get(status)
        return {"error": {"message": detail, "type": "invalid_request_error", "param": None, "code": code}}


class AnthropicDialect(Dialect):
    def status(self, error: errors.AgentmemError) -> int:
        return _OVERLOADED if isinstance(error, errors.Unavailable) else error.http_status

    def body(self, error: errors.AgentmemError, request_id: str = "") -> Json:
        message = _message(error)
        if isinstance(error, errors.InvalidArgument):
            message = error.about(self.param(error) or error.field)
        return self.http_body(error.http_status, message, request_id)

    def http_body(self, status: int, detail: str, request_id: str = "") -> Json:
        kind = _TYPES.get(status, (None, None))[1] or ("api_error" if status >= 500 else "invalid_request_error")
        body: Json = {"type": "error", "error": {"type": kind, "message": detail}}
        return {**body, "request_id": request_id} if request_id else body


def _message(error: errors.AgentmemError) -> str:
    """Begin the words about a prompt that is too long as Anthropic's API does."""
    if isinstance(error, errors.ContextExceeded):
        return f"prompt is too long: {error.tokens} tokens > {error.limit} maximum ({error.message})"
    return error.message


OPENAI: Final = Dialect(_OPENAI)
COMPLETIONS: Final = Dialect(((r"token_ids\b.*", "prompt"), *_OPENAI))
RESPONSES: Final = Dialect(_RESPONSES)
REST: Final = Dialect()
ANTHROPIC: Final = AnthropicDialect(_ANTHROPIC)

_ENDPOINTS: Final = {"/v1/completions": COMPLETIONS, "/v1/responses": RESPONSES}
_REST_PATHS: Final = ("/v1/agents", "/v1/turn-hints", "/v1/generations/", "/v1/model-registry", "/v1/workflows")


def dialect_of(path: str, *, anthropic: bool) -> Dialect:
    """`anthropic`: the header of its SDKs is there."""
    if path.startswith(_REST_PATHS):
        return REST
    if anthropic or path == "/v1/messages" or path.startswith("/v1/messages/"):
        return ANTHROPIC
    return _ENDPOINTS.get(path, OPENAI)
