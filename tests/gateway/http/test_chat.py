"""Completions of chats and of texts, mostly through the official SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote

import httpx
import openai
import pytest

from agentmem import errors
from agentmem.v1 import inference_pb2

from ..running import answered
from ..scripted import TOLD_VERSION, ScriptedWorker, delta, finished, started

MESSAGES: Any = [{"role": "user", "content": "hi"}]
BODY = {"model": "demo", "messages": MESSAGES}


async def test_completion(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        model="demo",
        messages=MESSAGES,
        max_completion_tokens=9,
        stop=["\n"],
        seed=1,
        extra_body={"top_k": 5},
        extra_headers={"X-Agent-ID": "bob", "Idempotency-Key": "turn-1"},
    )
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.content == "Hello 🌍"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 12
    assert answer.model_extra is not None
    assert answer.model_extra["agentmem"]["version"] == TOLD_VERSION
    (request,) = worker.requests
    assert (request.key.namespace, request.key.agent_id, request.key.model_id) == ("default", "bob", "demo")
    assert (request.request_id, request.max_tokens, list(request.stop)) == ("turn-1", 9, ["\n"])
    assert (request.sampling.seed, request.sampling.top_k, request.sampling.HasField("temperature")) == (1, 5, False)


async def test_stream(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model="demo", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello 🌍"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3
    assert chunks[-2].model_extra is not None
    assert chunks[-2].model_extra["agentmem"]["match"] == "extend"


async def test_the_sdks_own_answer_can_be_sent_back(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model="demo", messages=MESSAGES)
    history: Any = [*MESSAGES, answer.choices[0].message, *MESSAGES]
    await sdk.chat.completions.create(model="demo", messages=history)
    roles = [message.role for message in worker.generated[1].messages.messages]
    assert roles == ["user", "assistant", "user"]


async def test_without_an_agent_one_is_made(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/chat/completions", json=BODY)
    (request,) = worker.generated
    assert request.key.agent_id.startswith("conv-")
    assert request.request_id == ""
    assert answer.headers["x-agent-id"] == request.key.agent_id == answer.json()["agentmem"]["agent_id"]


async def test_name_of_a_conversation_is_in_its_agents_id(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/chat/completions", json=BODY, headers={"X-Agent-Name": "my%20app"})
    (request,) = worker.generated
    assert request.key.agent_id.startswith("conv-my app-")
    assert unquote(answer.headers["x-agent-id"]) == request.key.agent_id
    for headers in ({"X-Agent-Name": "a", "X-Agent-ID": "bob"}, {"X-Agent-Name": "a" * 201}):
        refused = await http.post("/v1/chat/completions", json=BODY, headers=headers)
        assert refused.status_code == 400 and "X-Agent-Name" in refused.text


async def test_only_a_named_agent_s_turn_decides_by_its_input(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    for headers in ({}, {"X-Agent-ID": "bob"}, {"X-Agent-ID": "bob", "X-Agent-Memory": "refuse"}):
        await http.post("/v1/chat/completions", json=BODY, headers=headers)
    modes = [inference_pb2.MemoryMode.Name(request.memory_mode) for request in worker.generated]
    assert modes == ["MEMORY_MODE_UNSPECIFIED", "MEMORY_MODE_AUTO", "MEMORY_MODE_REFUSE"]


async def test_what_is_left_behind_is_in_header_and_body(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    async def leaving(request: inference_pb2.GenerateRequest) -> AsyncIterator[Any]:
        dropped: Any = {"dropped_tokens": 7, "dropped_snapshot": "auto-2"}
        yield inference_pb2.GenerateResponse(started=inference_pb2.Started(**dropped))
        yield finished()

    worker.script = leaving
    for stream in (False, True):
        answer = await http.post("/v1/chat/completions", json={**BODY, "stream": stream}, headers={"X-Agent-ID": "a"})
        warning = answer.headers["x-agent-warning"]
        assert "7 tokens" in warning and "auto-2" in warning
        assert json.dumps(warning) in answer.text


async def test_agent_ids_are_percent_decoded_or_refused(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    odd = [("",), ("%ff",), ("100%",), ("%zz",), ("a" * 257,), ("%C3%A9" * 129,), ("caf\u00e9".encode(),), ("a", "b")]
    for values in odd:
        headers: Any = [("X-Agent-ID", value) for value in values]
        answer = await http.post("/v1/chat/completions", json=BODY, headers=headers)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Agent-ID"), values
    assert answer.json()["error"]["message"] == "X-Agent-ID: is given more than once"
    assert worker.requests == []
    await http.post("/v1/chat/completions", json=BODY, headers={"X-Agent-ID": "caf%C3%A9/%25 x"})
    assert worker.requests[0].key.agent_id == "café/% x"


async def test_the_idempotency_key_names_the_turn(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    for attempt in ("r1", "r2"):  # as a proxy stamps them
        headers = {"Idempotency-Key": "k1", "X-Request-ID": attempt}
        answer = await http.post("/v1/chat/completions", json=BODY, headers=headers)
        assert answer.headers["x-request-id"] == attempt
    assert [request.request_id for request in worker.generated] == ["k1", "k1"]
    generations = zip(worker.requests, worker.metadata, strict=True)
    traced = [metadata["x-request-id"] for request, metadata in generations if request in worker.generated]
    assert traced == ["r1", "r2"]
    answer = await http.post("/v1/chat/completions", json=BODY, headers={"Idempotency-Key": "k" * 129})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")
    unnamed = await http.post("/v1/chat/completions", json=BODY, headers={"X-Request-ID": "r" * 129})
    assert unnamed.headers["x-request-id"].startswith("req-")
    assert worker.generated[-1].request_id == "", "the request's id is for tracing only"


async def test_one_line_of_the_log_per_request(
    worker: ScriptedWorker, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    body = {**BODY, "messages": [{"role": "user", "content": "a secret"}]}
    answer = await http.post("/v1/chat/completions", json=body, headers={"X-Agent-ID": "bob"})
    refused = await http.post("/v1/chat/completions", json={**body, "model": 1}, headers={"X-Request-ID": "mine"})
    await http.get("/healthz")
    lines = answered(caplog)
    turn = {"match": "extend", "prompt_tokens": 20, "reused_tokens": 12, "generated_tokens": 3}
    assert [{**line, "ms": 0} for line in lines] == [
        {
            "method": "POST",
            "route": "/v1/chat/completions",
            "status": status,
            "ms": 0,
            "request_id": request_id,
            "namespace": "default",
            **told,
        }
        for status, request_id, told in (
            (200, answer.headers["x-request-id"], {"agent": "bob", "model": BODY["model"], **turn}),
            (refused.status_code, "mine", {"agent": ""}),
        )
    ]
    assert "secret" not in str([vars(record) for record in caplog.records if record.name.startswith("gateway")])


async def test_too_large(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    large = b" " * (64 * 1024 + 1)
    answer = await http.post("/v1/chat/completions", content=large, headers={"content-type": "application/json"})
    assert answer.status_code == 413

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b" " * 8192

    answer = await http.post("/v1/chat/completions", content=chunks(), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "invalid_request_error"


REFUSALS = [
    (errors.InvalidArgument("sampling.temperature", "must be finite"), 400),
    (errors.ResourceExhausted("queue full", retry_after=7.2), 429),
    (errors.Unavailable("loading", retry_after=3), 503),
    (RuntimeError("secret"), 500),
]
"""One of each form; api/test_errors has the table."""


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_has_its_status(worker: ScriptedWorker, http: httpx.AsyncClient, stream: bool) -> None:
    for error, status in REFUSALS:
        worker.error = error
        answer = await http.post("/v1/chat/completions", json={**BODY, "stream": stream})
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/json"
        assert "secret" not in answer.text
        assert answer.headers.get("retry-after") == {429: "8", 503: "3"}.get(status)


async def echo(request: inference_pb2.GenerateRequest) -> AsyncIterator[inference_pb2.GenerateResponse]:
    """Says what it was asked, so that mixed up choices show."""
    yield started()
    for character in f"{request.prompt}{request.sampling.seed}":
        yield delta(character)
    yield finished()


async def test_completion_of_a_text(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    headers = {"X-Agent-ID": "bob", "Idempotency-Key": "turn-1"}
    answer = await sdk.completions.create(model="demo", prompt="hi", extra_headers=headers)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello 🌍", "stop")
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 12
    (request,) = worker.generated
    assert (request.key.agent_id, request.request_id, request.prompt, request.max_tokens) == ("bob", "turn-1", "hi", 16)
    await sdk.completions.create(model="demo", prompt="hi")
    assert worker.requests[-1].key.agent_id == "", "nothing is kept"


async def test_choices_come_prompt_by_prompt(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    worker.script = echo
    asked: Any = {"model": "demo", "prompt": ["a", "b", "c"], "n": 2, "seed": 5}
    wanted = ["a5", "a6", "b5", "b6", "c5", "c6"]
    answer = await sdk.completions.create(**asked)
    assert [choice.text for choice in answer.choices] == wanted
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (60, 18)
    texts = [""] * 6
    async for chunk in await sdk.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
        usage = chunk.usage
    assert texts == wanted
    assert usage is not None and usage.prompt_tokens == 60
