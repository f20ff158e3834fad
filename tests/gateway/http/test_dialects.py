from typing import Any

import pytest

from agentmem.errors import Unavailable
from gateway.http.dialects import dialect_of, speaks_anthropic


def scope(path: str, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "path": path, "headers": list(headers)}


@pytest.mark.parametrize(
    ("asked", "anthropic"),
    [
        (scope("/v1/messages"), True),
        (scope("/v1/messages/count_tokens"), True),
        (scope("/v1/messages/"), True),
        (scope("/v1/models", (b"anthropic-version", b"2023-06-01")), True),
        (scope("/v1/models"), False),
        (scope("/v1/messages2"), False),
        (scope("/v1/chat/completions", (b"x-api-key", b"k")), False),
    ],
)
def test_the_dialect_of_a_request(asked: dict[str, Any], anthropic: bool) -> None:
    assert speaks_anthropic(asked) == anthropic
    page = dialect_of(asked).page(Unavailable("loading"), "req-1")
    assert page.status == (529 if anthropic else 503)
    assert page.body["error"]["type"] == "overloaded_error"
    assert page.body.get("request_id") == ("req-1" if anthropic else None)
    body = dialect_of(asked).http_body(404, "no such thing", "req-1")
    assert ("param" in body["error"]) != anthropic
