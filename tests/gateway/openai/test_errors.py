import pytest

from agentmem import errors
from gateway.openai.errors import error_body


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("sampling.top_p", "top_p"),
        ("messages.messages[2].role", "messages[2].role"),
        ("messages.messages[1].tool_calls_json", "messages[1].tool_calls"),
        ("messages.tools_json", "tools"),
        ("key.model_id", "model"),
        ("key.agent_id", "X-Agent-ID"),
        ("request_id", "Idempotency-Key"),
        ("stop[3]", "stop[3]"),
        ("body", None),
    ],
)
def test_fields_have_the_dialects_names(field: str, param: str | None) -> None:
    error = error_body(errors.InvalidArgument(field, "is wrong"))["error"]
    assert error["param"] == param
    assert error["message"] == f"{param or field}: is wrong"
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_argument")


def test_unknown_model() -> None:
    error = error_body(errors.NotFound("model", "gpt-9"))["error"]
    assert (error["param"], error["code"], error["type"]) == ("model", "model_not_found", "invalid_request_error")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.Unauthenticated("x"), "authentication_error"),
        (errors.PermissionDenied("x"), "permission_error"),
        (errors.Aborted("x"), "conflict_error"),
        (errors.ResourceExhausted("x"), "rate_limit_error"),
        (errors.Unavailable("x"), "overloaded_error"),
        (errors.DeadlineExceeded("x"), "timeout_error"),
        (errors.Internal("x"), "server_error"),
        (errors.DataLoss("x"), "invalid_request_error"),
    ],
)
def test_types(error: errors.AgentmemError, kind: str) -> None:
    body = error_body(error)["error"]
    assert body == {"message": "x", "type": kind, "param": None, "code": error.code.name.lower()}
