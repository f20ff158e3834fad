import pytest

from agentmem import errors
from gateway.anthropic.errors import error_body, http_error_body, status


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("sampling.top_p", "top_p"),
        ("max_tokens", "max_tokens"),
        ("stop", "stop_sequences"),
        ("stop[0]", "stop_sequences[0]"),
        ("stop_sequences[1]", "stop_sequences[1]"),
        ("messages", "messages"),
        ("messages[2].content[0].type", "messages[2].content[0].type"),
        ("messages.messages[2].role", "messages"),
        ("messages.tools_json", "tools"),
        ("tool_calls", "tools"),
        ("json_schema", "output_config.format.schema"),
        ("label", "metadata.user_id"),
        ("key.model_id", "model"),
        ("key.agent_id", "X-Agent-ID"),
        ("request_id", "Idempotency-Key"),
        ("system", "system"),
        ("body", "body"),
    ],
)
def test_fields_have_the_dialects_names(field: str, told: str) -> None:
    body = error_body(errors.InvalidArgument(field, "is wrong"), "req-1")
    assert body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": f"{told}: is wrong"},
        "request_id": "req-1",
    }


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (errors.InvalidArgument("x", "y"), 400, "invalid_request_error"),
        (errors.FailedPrecondition("x"), 400, "invalid_request_error"),
        (errors.Unauthenticated("x"), 401, "authentication_error"),
        (errors.PermissionDenied("x"), 403, "permission_error"),
        (errors.NotFound("model", "x"), 404, "not_found_error"),
        (errors.Aborted("x"), 409, "invalid_request_error"),
        (errors.DataLoss("x"), 422, "invalid_request_error"),
        (errors.ResourceExhausted("x"), 429, "rate_limit_error"),
        (errors.Internal("x"), 500, "api_error"),
        (errors.Unimplemented("x"), 501, "api_error"),
        (errors.Unavailable("x"), 529, "overloaded_error"),
        (errors.DeadlineExceeded("x"), 504, "timeout_error"),
    ],
)
def test_types(error: errors.AgentmemError, code: int, kind: str) -> None:
    assert status(error) == code
    assert error_body(error)["error"]["type"] == kind
    assert "request_id" not in error_body(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (500, "api_error"),
    ],
)
def test_errors_of_http(code: int, kind: str) -> None:
    assert http_error_body(code, "no", "r") == {
        "type": "error",
        "error": {"type": kind, "message": "no"},
        "request_id": "r",
    }
