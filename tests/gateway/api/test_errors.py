from typing import Any

import pytest

from agentmem import errors
from gateway.api.errors import ANTHROPIC, COMPLETIONS, OPENAI, RESPONSES, REST, Dialect, dialect_of


@pytest.mark.parametrize(
    ("field", "openai", "responses", "anthropic"),
    [
        ("sampling.top_p", "top_p", "top_p", "top_p"),
        ("max_tokens", "max_tokens", "max_output_tokens", "max_tokens"),
        ("stop", "stop", "stop", "stop_sequences"),
        ("stop[3]", "stop[3]", "stop[3]", "stop_sequences[3]"),
        ("stop_sequences[1]", "stop_sequences[1]", "stop_sequences[1]", "stop_sequences[1]"),
        ("messages", "messages", "input", "messages"),
        ("messages[2].content[0].type", "messages[2].content[0].type", "input", "messages[2].content[0].type"),
        ("messages.messages[2].role", "messages[2].role", "input", "messages"),
        ("messages.messages[1].tool_calls_json", "messages[1].tool_calls", "input", "messages"),
        ("messages.tools_json", "tools", "tools", "tools"),
        ("messages.tools_json[2]", "tools[2]", "tools[2]", "tools[2]"),
        ("messages.template_arguments_json", *["chat_template_kwargs"] * 3),
        ("append.messages.messages[0].content", ..., "input", ...),
        ("append.messages.tools_json", ..., "tools", ...),
        ("append.messages.tools_json[1]", ..., "tools[1]", ...),
        ("append.messages.template_arguments_json", ..., "chat_template_kwargs", ...),
        ("tool_calls", "tools", "tools", "tools"),
        ("tool_choice", "tool_choice", "tool_choice", "tool_choice"),
        ("json_schema", "response_format", "text.format", "output_config.format.schema"),
        ("label", ..., ..., "metadata.user_id"),
        ("instructions", ..., "instructions", ...),
        ("system", ..., ..., "system"),
        ("key.model_id", "model", "model", "model"),
        ("key.agent_id", "X-Agent-ID", "X-Agent-ID", "X-Agent-ID"),
        ("request_id", "Idempotency-Key", "Idempotency-Key", "Idempotency-Key"),
        ("body", None, None, "body"),
    ],
)
def test_fields_have_the_dialects_names(field: str, openai: Any, responses: Any, anthropic: Any) -> None:
    """Where the dialect has the field; `...` where it has not."""
    error = errors.InvalidArgument(field, "is wrong")
    for dialect, param in ((OPENAI, openai), (RESPONSES, responses)):
        told = {"message": f"{param or field}: is wrong", "type": "invalid_request_error", "param": param}
        assert param is ... or dialect.body(error) == {"error": {**told, "code": "invalid_argument"}}
    told = {"type": "invalid_request_error", "message": f"{anthropic}: is wrong"}
    assert anthropic is ... or ANTHROPIC.body(error, "req-1") == {"type": "error", "error": told, "request_id": "req-1"}


def test_completions_call_their_tokens_the_prompt() -> None:
    assert [COMPLETIONS.name(one) for one in ("token_ids.ids[3]", "prompt", "stop")] == ["prompt", "prompt", "stop"]


@pytest.mark.parametrize(
    ("error", "status", "openai", "anthropic"),
    [
        (errors.InvalidArgument("x", "y"), 400, "invalid_request_error", "invalid_request_error"),
        (errors.FailedPrecondition("x"), 400, "invalid_request_error", "invalid_request_error"),
        (errors.Unauthenticated("x"), 401, "authentication_error", "authentication_error"),
        (errors.PermissionDenied("x"), 403, "permission_error", "permission_error"),
        (errors.NotFound("model", "x"), 404, "invalid_request_error", "not_found_error"),
        (errors.NotFound("response", "x"), 404, "invalid_request_error", "not_found_error"),
        (errors.Aborted("x"), 409, "conflict_error", "invalid_request_error"),
        (errors.DataLoss("x"), 422, "invalid_request_error", "invalid_request_error"),
        (errors.ResourceExhausted("x"), 429, "rate_limit_error", "rate_limit_error"),
        (errors.Cancelled("x"), 499, "request_cancelled", "invalid_request_error"),
        (errors.Internal("x"), 500, "server_error", "api_error"),
        (errors.Unimplemented("x"), 501, "server_error", "api_error"),
        (errors.Unavailable("x"), 503, "overloaded_error", "overloaded_error"),
        (errors.DeadlineExceeded("x"), 504, "timeout_error", "timeout_error"),
    ],
    ids=lambda value: f"{value.code.name} {getattr(value, 'kind', '')}" if isinstance(value, Exception) else "",
)
def test_statuses_and_types(error: errors.AgentmemError, status: int, openai: str, anthropic: str) -> None:
    assert OPENAI.status(error) == status
    assert ANTHROPIC.status(error) == (529 if status == 503 else status)
    said = OPENAI.body(error)["error"]
    param, code = {
        "model": ("model", "model_not_found"),
        "response": ("previous_response_id", "previous_response_not_found"),
    }.get(getattr(error, "kind", ""), (getattr(error, "field", None), error.code.name.lower()))
    assert said == {"message": error.message, "type": openai, "param": param, "code": code}
    assert ANTHROPIC.body(error) == {"type": "error", "error": {"type": anthropic, "message": error.message}}


@pytest.mark.parametrize("dialect", [OPENAI, REST, ANTHROPIC])
def test_it_is_said_that_there_are_more_mistakes(dialect: Dialect) -> None:
    error = errors.InvalidArgument("definition_yaml", "is wrong", [errors.Violation("agents", "are, too")])
    assert dialect.body(error)["error"]["message"] == "definition_yaml: is wrong (and 1 more)"


@pytest.mark.parametrize("dialect", [OPENAI, RESPONSES, REST])
def test_a_prompt_that_is_too_long(dialect: Dialect) -> None:
    """Frameworks know it by OpenAI's code, or by words of Anthropic's."""
    error = errors.ContextExceeded("shorten it", 9000, 8192)
    assert dialect.body(error)["error"] == {
        "message": "prompt is too long: 9000 tokens > 8192 maximum (shorten it)",
        "type": "invalid_request_error",
        "param": None,
        "code": "context_length_exceeded",
    }
    said = ANTHROPIC.body(error)["error"]
    assert said["message"] == "prompt is too long: 9000 tokens > 8192 maximum (shorten it)"
    assert (ANTHROPIC.status(error), said["type"]) == (400, "invalid_request_error")


def test_errors_of_http() -> None:
    kinds = {404: "not_found_error", 413: "request_too_large", 415: "invalid_request_error", 500: "api_error"}
    for code, kind in kinds.items():
        error = {"type": kind, "message": "no"}
        assert ANTHROPIC.http_body(code, "no", "r") == {"type": "error", "error": error, "request_id": "r"}


@pytest.mark.parametrize(
    ("path", "header", "anthropic"),
    [
        ("/v1/messages", False, True),
        ("/v1/messages/count_tokens", False, True),
        ("/v1/messages/", False, True),
        ("/v1/models", True, True),
        ("/v1/models", False, False),
        ("/v1/messages2", False, False),
        ("/v1/chat/completions", False, False),
        ("/v1/agents/a", True, False),
    ],
)
def test_the_dialect_of_a_request(path: str, header: bool, anthropic: bool) -> None:
    dialect = dialect_of(path, anthropic=header)
    assert dialect.status(errors.Unavailable("loading")) == (529 if anthropic else 503)
    body = dialect.body(errors.Unavailable("loading"), "req-1")
    assert body["error"]["type"] == "overloaded_error"
    assert body.get("request_id") == ("req-1" if anthropic else None)
    assert ("param" in dialect.http_body(404, "no such thing", "req-1")["error"]) != anthropic
