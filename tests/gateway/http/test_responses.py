"""Responses through the official SDK and its accumulator."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from agentmem.v1 import agent_pb2, inference_pb2, types_pb2

from ..scripted import ScriptedWorker, delta, finished, started

TOOL: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}


async def calling(_: Any) -> AsyncIterator[inference_pb2.GenerateResponse]:
    yield started()
    yield delta("I look.")
    call = inference_pb2.ToolCall(id="c1", name="look", arguments_json='{"at": "sea"}')
    yield inference_pb2.GenerateResponse(delta=inference_pb2.Delta(token_ids=[1], tool_calls=[call]))
    yield finished(types_pb2.FINISH_REASON_TOOL_CALLS)


def has(worker: ScriptedWorker, response: str, agent: str, version: int) -> None:
    """The response's turn is the last one of an agent."""
    key = types_pb2.AgentKey(namespace="default", agent_id=agent, model_id="demo")
    state = types_pb2.AgentVersion(uid="u", version=version)
    worker.turns[response] = agent_pb2.FindAgentResponse(agent=agent_pb2.Agent(key=key, version=state), version=state)


async def test_response(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.responses.create(
        model="demo", input="hi", instructions="be nice", extra_headers={"X-Agent-ID": "bob"}
    )
    assert (answer.output_text, answer.status) == ("Hello 🌍", "completed")
    assert answer.usage is not None and answer.usage.input_tokens_details.cached_tokens == 12
    assert answer.model_extra is not None and answer.model_extra["agentmem"]["agent_id"] == "bob"
    (request,) = worker.generated
    assert [message.role for message in request.messages.messages] == ["system", "user"]
    assert (request.key.agent_id, request.request_id) == ("bob", answer.id)


async def test_the_accumulator_builds_what_the_last_event_has(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    worker.script = calling
    async with sdk.responses.stream(model="demo", input="hi", tools=[TOOL]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type.removeprefix("response.") for event in events] == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert final.output_text == "I look."
    (call,) = [item for item in final.output if item.type == "function_call"]
    assert (call.name, call.call_id, call.arguments) == ("look", "c1", '{"at": "sea"}')
    assert worker.generated[0].tool_calls


async def test_what_the_sdk_got_can_be_sent_back(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    worker.script = calling
    tools: Any = {"model": "demo", "tools": [TOOL]}
    whole = await sdk.responses.create(input="hi", **tools)
    async with sdk.responses.stream(input="hi", **tools) as stream:
        parsed = await stream.get_final_response()
    for output in (whole.output, parsed.output):
        gave = {"type": "function_call_output", "call_id": "c1", "output": "a boat"}
        history: Any = [{"role": "user", "content": "hi"}, *output, gave]
        await sdk.responses.create(input=history, **tools)
        _, said, result = worker.generated[-1].messages.messages
        assert (said.role, said.content, result.role, result.content) == ("assistant", "I look.", "tool", "a boat")
        (call,) = json.loads(said.tool_calls_json)
        assert (call["id"], call["function"]["name"]) == (result.tool_call_id, "look")


async def test_a_response_is_followed_by_its_id(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    first = await sdk.responses.create(model="demo", input="hi", instructions="be nice")
    has(worker, first.id, "conv-1", 3)
    second = await sdk.responses.create(
        model="demo", input="and?", instructions="be nice", previous_response_id=first.id
    )
    assert second.previous_response_id == first.id
    request = worker.generated[-1]
    assert (request.key.agent_id, request.if_version, request.request_id) == ("conv-1", 3, second.id)
    assert [message.content for message in request.append.messages.messages] == ["and?"]


async def test_a_retry_is_the_same_response(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    first = await sdk.responses.create(model="demo", input="hi")
    has(worker, first.id, "conv-1", 3)
    follow: Any = {"model": "demo", "input": "and?", "previous_response_id": first.id}
    headers = {"Idempotency-Key": "k"}
    second = await sdk.responses.create(**follow, extra_headers=headers)
    has(worker, second.id, "conv-1", 4)  # committed, and its answer was lost on the way
    again = await sdk.responses.create(**follow, extra_headers=headers)
    assert again.id == second.id
    request = worker.generated[-1]
    assert (request.key.agent_id, request.request_id) == ("conv-1", second.id)
    assert request.if_version == 4, "where the turn is gone meanwhile, the agent is not begun again by chance"


async def test_an_unknown_response_is_not_found(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    first = await sdk.responses.create(model="demo", input="hi")
    for unknown in (first.id, "resp_1"):
        with pytest.raises(openai.NotFoundError) as missing:
            await sdk.responses.create(model="demo", input="and?", previous_response_id=unknown)
        assert (missing.value.param, missing.value.code) == ("previous_response_id", "previous_response_not_found")
    *_, search = worker.requests
    assert (search.namespace, search.request_id) == ("default", first.id), (
        "looked for among the caller's own turns only"
    )


async def test_responses_of_others_cannot_be_fetched(worker: ScriptedWorker, sdk: openai.AsyncOpenAI) -> None:
    calls: list[Any] = [
        sdk.responses.retrieve("resp_1"),
        sdk.responses.delete("resp_1"),
        sdk.responses.input_items.list("resp_1"),
        sdk.responses.create(model="demo", input=[{"type": "item_reference", "id": "msg_1"}]),
    ]
    for call in calls:
        with pytest.raises(openai.NotFoundError, match="it is of another server"):
            await call
    assert worker.requests == []
