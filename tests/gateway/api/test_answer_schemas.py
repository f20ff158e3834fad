"""What the document says of answers is what is sent: no field is missing from it, and none is made up."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema
import pytest

from gateway.api import answer_schemas
from gateway.api.validation import Json
from tests.gateway.scripted import ScriptedWorker

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}


def told(schema: Json, answer: Any) -> None:
    """Fails unless `answer` fits, and each of its objects has the fields that `schema` names, and no others."""
    jsonschema.validate(answer, schema)
    if "properties" in schema and answer is not None:
        assert answer.keys() == schema["properties"].keys()
        for name, inner in schema["properties"].items():
            told(inner, answer[name])
    for one in answer if "items" in schema else ():
        told(schema["items"], one)


@pytest.mark.parametrize(
    ("method", "path", "body", "schema"),
    [
        ("GET", "/v1/models", None, answer_schemas.MODELS),
        ("GET", "/v1/models/demo", None, answer_schemas.MODEL),
        ("POST", "/v1/chat/completions", CHAT, answer_schemas.CHAT_COMPLETION),
        ("POST", "/v1/messages/count_tokens", CHAT, answer_schemas.TOKENS),
        ("GET", "/healthz", None, answer_schemas.STATUS),
        ("GET", "/readyz", None, answer_schemas.STATUS),
    ],
)
async def test_answers(
    worker: ScriptedWorker, http: httpx.AsyncClient, method: str, path: str, body: Json | None, schema: Json
) -> None:
    answer = await http.request(method, path, json=body)
    assert answer.status_code == 200
    told(schema, answer.json())


def test_fields_that_may_be_null_have_their_type_besides() -> None:
    report = answer_schemas.MESSAGE["properties"]["agentmem"]["properties"]
    assert report["context_trim"]["type"] == ["object", "null"]
    assert report["context_trim"]["properties"]["snapshot"]["type"] == ["string", "null"]
    message = answer_schemas.CHAT_COMPLETION["properties"]["choices"]["items"]["properties"]["message"]
    assert message["properties"]["content"]["type"] == ["string", "null"]
    measured = answer_schemas.MODEL["properties"]["agentmem"]["properties"]["kv_bits_measured"]
    kl = measured["items"]["properties"]["kl_divergence"]
    assert set(kl["type"]) == {"number", "string"}, "JSON has no number for infinity"


async def test_what_readyz_says_without_a_worker(http: httpx.AsyncClient) -> None:
    told(answer_schemas.UNREADY, (await http.get("/readyz")).json())
