"""Bodies that no client should send, to every endpoint that takes JSON: a refusal in the dialect's shape, and no echo.

The endpoints and a good body of each come from the OpenAPI document, so a new one is tested without a line here.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.http.openapi import document

from ..background import Served, served

pytestmark = pytest.mark.sampled(3)

MAX_BODY = 1024 * 1024
CANARY = "canary b7f1"
HUGE = "@huge@"
FULL = bool(os.environ.get("AGENTMEM_FULL_MATRIX"))


class Endpoint(NamedTuple):
    """One that takes JSON: a good body, all fields that a body may have, and the schema of its errors."""

    method: str
    url: str
    body: dict[str, Any]
    fields: list[str]
    error: str


def endpoints() -> Iterator[Endpoint]:
    described = document()
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                query = "&".join(f"{one['name']}=demo" for one in operation["parameters"] if one["in"] == "query")
                error = operation["responses"]["default"]["content"]["application/json"]["schema"]["$ref"]
                url = re.sub(r"{\w+}", "a", path) + f"?{query}"
                schema = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
                fields = sorted(described["components"]["schemas"][schema].get("properties", {}))
                body = content["application/json"]["example"]
                yield Endpoint(method.upper(), url, body, fields, error.rpartition("/")[2])


ENDPOINTS = list(endpoints())
ALL = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: f"{one.method} {one.url.partition('?')[0]}")


@pytest.fixture(scope="module")
def door() -> Iterator[Served]:
    with served(max_body_bytes=MAX_BODY) as running:
        yield running


@pytest.fixture(scope="module")
def client(door: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=door.url, timeout=60) as http:
        yield http


def send(
    client: httpx.Client, endpoint: Endpoint, body: bytes, content_type: str = "application/json"
) -> httpx.Response:
    headers = {"content-type": content_type} if content_type else {}
    return client.request(endpoint.method, endpoint.url, content=body, headers=headers)


def assert_refusal(answer: httpx.Response, endpoint: Endpoint) -> None:
    """A 4xx in the shape that the document has for the endpoint."""
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    said = answer.json()
    if endpoint.error == "AnthropicError":
        assert said["type"] == "error"
        assert set(said["error"]) >= {"type", "message"}
    else:
        assert set(said["error"]) == {"message", "type", "param", "code"}


@ALL
def test_the_example_is_taken(client: httpx.Client, endpoint: Endpoint) -> None:
    answer = send(client, endpoint, json.dumps(endpoint.body).encode())
    of_a_run = endpoint.url.startswith("/v1/workflows/a/")  # of which there is none
    assert answer.status_code == (404 if of_a_run else 200), answer.text


@ALL
def test_what_is_not_json_by_its_headers_or_too_large(client: httpx.Client, endpoint: Endpoint) -> None:
    good = json.dumps(endpoint.body).encode()
    for content_type in ("", "text/plain", "application/octet-stream", "application/x-www-form-urlencoded"):
        answer = send(client, endpoint, good, content_type)
        assert answer.status_code == 415
        assert_refusal(answer, endpoint)
    answer = send(client, endpoint, good + b" " * MAX_BODY)
    assert answer.status_code == 413
    assert_refusal(answer, endpoint)


TOLD = {("model",), ("previous_response_id",)}
WORDS = st.sampled_from([CANARY, HUGE, "", "\x00", "\ud800", "\udc00x", f"\ud800{CANARY}", "\uffff", "9" * 400])
VALUES = st.recursive(
    WORDS
    | st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 2**31, 2**32, 2**63, 2**64, -(2**63) - 1, 10**399, -(10**399)])
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    for key, inner in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from places(inner, (*at, key))


def changed(data: Any, at: tuple[Any, ...], value: Any) -> Any:
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[at[0]] = changed(data[at[0]], at[1:], value) if at[1:] else value
    return copy


@ALL
@settings(
    max_examples=400 if FULL else 15,
    deadline=None,
    derandomize=not FULL,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_wrong_values_anywhere(
    client: httpx.Client, caplog: pytest.LogCaptureFixture, endpoint: Endpoint, data: st.DataObject
) -> None:
    caplog.set_level(logging.DEBUG)
    # A model's name is no secret: the log has it. Of a response's id the error says that there is none.
    anywhere = [*places(endpoint.body), *((name,) for name in endpoint.fields), ("x",)]
    at = data.draw(st.sampled_from([place for place in anywhere if place not in TOLD]))
    body = changed(endpoint.body, at, data.draw(VALUES))
    answer = send(client, endpoint, json.dumps(body).replace(f'"{HUGE}"', "1e400").encode())
    if answer.status_code != 200:
        assert_refusal(answer, endpoint)
        assert CANARY not in answer.text
    ours = [vars(record) for record in caplog.records if record.name.startswith(("gateway", "agentmem", "uvicorn"))]
    assert CANARY not in str(ours)
    caplog.clear()
