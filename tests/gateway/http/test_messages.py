"""Anthropic's messages, mostly through the official SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from agentmem import errors
from agentmem.v1 import inference_pb2, types_pb2

from ..scripted import TOLD_VERSION, ScriptedWorker, delta, finished, started

MESSAGES: Any = [{"role": "user", "content": "hi"}]
ASKED: Any = {"model": "demo", "max_tokens": 9, "messages": MESSAGES}
TOOL: Any = {"name": "look", "description": "looks", "input_schema": {"type": "object"}}


async def calling(_: Any) -> AsyncIterator[Any]:
    yield started()
    yield delta("I look.")
    call = inference_pb2.ToolCall(id="call_1", name="look", arguments_json='{"where": "în cellar"}')
    yield inference_pb2.GenerateResponse(delta=inference_pb2.Delta(tool_calls=[call], token_ids=[1, 2]))
    yield finished(types_pb2.FINISH_REASON_TOOL_CALLS)


async def test_message(worker: ScriptedWorker, claude: anthropic.AsyncAnthropic) -> None:
    answer = await claude.messages.create(
        **ASKED,
        system=[{"type": "text", "text": "be nice", "cache_control": {"type": "ephemeral"}}],
        extra_body={"temperature": 0.5},
        stop_sequences=["\n"],
        metadata={"user_id": "u1"},
        extra_headers={"X-Agent-ID": "bob", "Idempotency-Key": "turn-1"},
    )
    assert answer.id.startswith("msg_")
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "Hello 🌍"}]
    assert (answer.stop_reason, answer.stop_sequence, answer.role) == ("end_turn", None, "assistant")
    told = answer.usage
    assert (told.cache_read_input_tokens, told.cache_creation_input_tokens, told.input_tokens) == (12, 8, 0)
    assert told.output_tokens == 3
    assert answer.model_extra is not None
    assert answer.model_extra["agentmem"]["version"] == TOLD_VERSION
    assert answer._request_id is not None
    assert answer._request_id.startswith("req-")
    (request,) = worker.generated
    assert (request.key.namespace, request.key.agent_id, request.key.model_id) == ("default", "bob", "demo")
    assert (request.request_id, request.max_tokens, list(request.stop)) == ("turn-1", 9, ["\n"])
    assert (request.label, request.sampling.temperature) == ("u1", 0.5)
    assert [(m.role, m.content) for m in request.messages.messages] == [("system", "be nice"), ("user", "hi")]


async def test_stream(worker: ScriptedWorker, claude: anthropic.AsyncAnthropic) -> None:
    async with claude.messages.stream(**ASKED) as stream:
        texts = [text async for text in stream.text_stream]
        answer = await stream.get_final_message()
    assert texts == ["Hel", "lo", " 🌍"]
    whole = await claude.messages.create(**ASKED)
    assert answer.content[0].to_dict() == whole.content[0].to_dict()
    assert (answer.stop_reason, answer.usage.to_dict()) == (whole.stop_reason, whole.usage.to_dict())
    assert answer.usage.cache_creation_input_tokens == 8, "the conversation is kept without a name"


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools(worker: ScriptedWorker, claude: anthropic.AsyncAnthropic, streamed: bool) -> None:
    worker.script = calling
    answer: Any
    if streamed:
        async with claude.messages.stream(**ASKED, tools=[TOOL]) as stream:
            answer = await stream.get_final_message()
    else:
        answer = await claude.messages.create(**ASKED, tools=[TOOL])
    assert answer.stop_reason == "tool_use"
    said, call = answer.content
    assert (said.text, call.id, call.name, call.input) == ("I look.", "call_1", "look", {"where": "în cellar"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "a key"}
    history = [*MESSAGES, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    await claude.messages.create(model="demo", max_tokens=9, messages=history, tools=[TOOL])
    first, second = worker.generated
    assert first.tool_calls
    assert json.loads(first.messages.tools_json)[0]["function"]["parameters"] == {"type": "object"}
    assert second.messages.tools_json == first.messages.tools_json
    _, assistant, tool = second.messages.messages
    assert (assistant.role, assistant.content, tool.role, tool.content) == ("assistant", "I look.", "tool", "a key")
    (spelled,) = json.loads(assistant.tool_calls_json)
    assert json.loads(spelled["function"]["arguments"]) == {"where": "în cellar"}
    assert tool.tool_call_id == spelled["id"] == "call_1"


async def test_count_tokens(worker: ScriptedWorker, claude: anthropic.AsyncAnthropic) -> None:
    counted = await claude.messages.count_tokens(model="demo", messages=MESSAGES, system="s", tools=[TOOL])
    assert counted.input_tokens == 11
    (request,) = worker.requests
    assert (request.key.namespace, request.key.model_id, request.key.agent_id) == ("default", "demo", "")
    assert [message.role for message in request.messages.messages] == ["system", "user"]
    with pytest.raises(anthropic.BadRequestError, match="max_tokens: is not supported"):
        await claude.messages.count_tokens(model="demo", messages=MESSAGES, extra_body={"max_tokens": 5})
    worker.error = errors.NotFound("model", "x")
    with pytest.raises(anthropic.NotFoundError):
        await claude.messages.count_tokens(model="x", messages=MESSAGES)


async def test_models(worker: ScriptedWorker, claude: anthropic.AsyncAnthropic) -> None:
    assert [model.id async for model in claude.models.list(limit=1)] == ["demo", "org/large"], "two pages"
    assert (await claude.models.retrieve("org/large")).display_name == "org/large"
    assert (await claude.models.retrieve("demo")).created_at.year == 1970
    with pytest.raises(anthropic.NotFoundError) as caught:
        await claude.models.retrieve("nope")
    assert caught.value.type == "not_found_error"


REFUSALS: list[tuple[Exception, type[anthropic.APIStatusError], str]] = [
    (errors.InvalidArgument("stop[0]", "is too long"), anthropic.BadRequestError, "invalid_request_error"),
    (errors.Unauthenticated("the key is unknown"), anthropic.AuthenticationError, "authentication_error"),
    (errors.ResourceExhausted("queue full", 7.2), anthropic.RateLimitError, "rate_limit_error"),
    (errors.Unavailable("loading", 3), anthropic.OverloadedError, "overloaded_error"),
    (RuntimeError("secret"), anthropic.InternalServerError, "api_error"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_are_the_sdks_own_exceptions(
    worker: ScriptedWorker, claude: anthropic.AsyncAnthropic, stream: bool
) -> None:
    for error, kind, word in REFUSALS:
        worker.error = error
        with pytest.raises(kind) as caught:
            await claude.messages.create(**ASKED, stream=stream, extra_headers={"X-Agent-ID": "bob"})
        assert caught.value.type == word
        assert "secret" not in str(caught.value)
        waits = {429: "8", 529: "3"}.get(caught.value.status_code)
        assert caught.value.response.headers.get("retry-after") == waits
