import pytest

from agentmem import errors
from gateway.api.errors import ANTHROPIC, COMPLETIONS, OPENAI, RESPONSES, REST, Dialect, dialect_of


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
    error = OPENAI.body(errors.InvalidArgument(field, "is wrong"))["error"]
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
        ("messages.template_arguments_json", "chat_template_kwargs"),
        ("append.messages.template_arguments_json", "chat_template_kwargs"),
        ("max_tokens", "max_output_tokens"),
        ("json_schema", "text.format"),
        ("sampling.top_p", "top_p"),
        ("instructions", "instructions"),
        ("body", None),
    ],
)
def test_responses_have_names_of_their_own(field: str, param: str | None) -> None:
    assert RESPONSES.body(errors.InvalidArgument(field, "is wrong"))["error"]["param"] == param


@pytest.mark.parametrize("dialect", [OPENAI, REST, ANTHROPIC])
def test_it_is_said_that_there_are_more_mistakes(dialect: Dialect) -> None:
    error = errors.InvalidArgument("definition_yaml", "is wrong", [errors.Violation("agents", "are, too")])
    assert dialect.body(error)["error"]["message"] == "definition_yaml: is wrong (and 1 more)"


def test_completions_call_their_tokens_the_prompt() -> None:
    assert [COMPLETIONS.name(one) for one in ("token_ids.ids[3]", "prompt", "stop")] == ["prompt", "prompt", "stop"]


def test_unknown_response() -> None:
    error = OPENAI.body(errors.NotFound("response", "resp_1"))["error"]
    assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")


def test_unknown_model() -> None:
    error = OPENAI.body(errors.NotFound("model", "gpt-9"))["error"]
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
    body = OPENAI.body(error)["error"]
    assert body == {"message": "x", "type": kind, "param": None, "code": error.code.name.lower()}


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
def test_fields_have_anthropics_names(field: str, told: str) -> None:
    body = ANTHROPIC.body(errors.InvalidArgument(field, "is wrong"), "req-1")
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
def test_anthropics_types(error: errors.AgentmemError, code: int, kind: str) -> None:
    assert ANTHROPIC.status(error) == code
    assert ANTHROPIC.body(error)["error"]["type"] == kind
    assert "request_id" not in ANTHROPIC.body(error)


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
    assert ANTHROPIC.http_body(code, "no", "r") == {
        "type": "error",
        "error": {"type": kind, "message": "no"},
        "request_id": "r",
    }


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
