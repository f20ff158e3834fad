import pytest

from agentmem import errors
from gateway.openai.errors import completion_param, error_body, response_param


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("sampling.top_p", "top_p"),
        ("messages.messages[2].role", "messages[2].role"),
        ("messages.messages[1].tool_calls_json", "messages[1].tool_calls"),
        ("messages.tools_json", "tools"),
        ("messages.tools_json[2]", "tools[2]"),
        ("messages.template_arguments_json", "chat_template_kwargs"),
        ("tool_choice", "tool_choice"),
        ("key.model_id", "model"),
        ("key.agent_id", "X-Agent-ID"),
        ("request_id", "Idempotency-Key"),
        ("stop[3]", "stop[3]"),
        ("json_schema", "response_format"),
        ("body", None),
    ],
)
def test_fields_have_the_dialects_names(field: str, param: str | None) -> None:
    error = error_body(errors.InvalidArgument(field, "is wrong"))["error"]
    assert error["param"] == param
    assert error["message"] == f"{param or field}: is wrong"
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_argument")


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("messages.messages[2].role", "input"),
        ("append.messages.messages[0].content", "input"),
        ("append.messages.tools_json", "tools"),
        ("append.messages.tools_json[1]", "tools[1]"),
        ("messages.tools_json[1]", "tools[1]"),
        ("max_tokens", "max_output_tokens"),
        ("json_schema", "text.format"),
        ("sampling.top_p", "top_p"),
        ("instructions", "instructions"),
        ("body", None),
    ],
)
def test_responses_have_names_of_their_own(field: str, param: str | None) -> None:
    assert error_body(errors.InvalidArgument(field, "is wrong"), response_param)["error"]["param"] == param


def test_completions_call_their_tokens_the_prompt() -> None:
    assert [completion_param(field) for field in ("token_ids.ids[3]", "prompt", "stop")] == ["prompt", "prompt", "stop"]


def test_unknown_response() -> None:
    error = error_body(errors.NotFound("response", "resp_1"))["error"]
    assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")


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
