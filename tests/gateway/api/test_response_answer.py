import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from agentmem import errors
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.exchange import Incoming, SseEvent
from gateway.api.responses import response_exchange
from gateway.api.responses_output import ResponseAnswer
from gateway.api.responses_schema import ResponseRequest
from gateway.api.validation import Json
from tests.gateway.scripted import delta, finished, started

ANY_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def answer(**fields: Any) -> ResponseAnswer:
    request = ResponseRequest.model_validate({"model": "demo", "input": "hi", **fields})
    made = response_exchange(request, Incoming("ns", "", "f" * 32, 7)).answer
    assert isinstance(made, ResponseAnswer)
    return made


def streamed(stream: ResponseAnswer, *events: inference_pb2.GenerateResponse) -> list[Json]:
    return told([said for event in events for said in stream.events(0, event)])


def told(events: list[SseEvent]) -> list[Json]:
    """The events' data, each checked as the SDK's own type."""
    found = []
    for data, name in events:
        assert isinstance(data, dict)
        assert data["type"] == name
        ANY_EVENT.validate_python(data)
        found.append(json.loads(json.dumps(data)))
    return found


def test_response() -> None:
    whole = answer(instructions="be nice", metadata={"a": "b"}, temperature=0.5)
    whole.agent_id = "bob"
    for event in (started(), delta("Hel"), delta("lo"), finished()):
        whole.add(0, event)
    body = whole.body()
    response = Response.model_validate(body)
    assert (response.status, response.output_text, response.error) == ("completed", "Hello", None)
    assert (response.instructions, response.metadata, response.temperature) == ("be nice", {"a": "b"}, 0.5)
    assert body["usage"] == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 12, "cache_write_tokens": 8},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 23,
    }
    assert (body["agentmem"]["agent_id"], body["agentmem"]["match"]) == ("bob", "extend")


def test_the_limit_makes_it_incomplete() -> None:
    whole = answer()
    for event in (started(), delta("Hel"), finished(types_pb2.FINISH_REASON_LENGTH, kept=False)):
        whole.add(0, event)
    body = whole.body()
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    assert body["usage"]["input_tokens_details"]["cache_write_tokens"] == 0
    assert Response.model_validate(body).incomplete_details is not None


@given(st.lists(st.text(max_size=4)), st.sampled_from([types_pb2.FINISH_REASON_STOP, types_pb2.FINISH_REASON_LENGTH]))
def test_a_stream_tells_the_whole_response(texts: list[str], reason: Any) -> None:
    events = [started(), *(delta(text) for text in texts), finished(reason)]
    stream, whole = answer(), answer()
    chunks = [*streamed(stream, *events), *told(list(stream.closing()))]
    for event in events:
        whole.add(0, event)
    assert [chunk["sequence_number"] for chunk in chunks] == list(range(len(chunks)))
    assert [chunk["type"] for chunk in chunks[:2]] == ["response.created", "response.in_progress"]
    assert chunks[-1]["type"] == f"response.{whole.body()['status']}"
    assert chunks[-1]["response"] == whole.body()
    assert "".join(chunk.get("delta", "") for chunk in chunks) == "".join(texts)
    assert {chunk["response"]["id"] for chunk in chunks if "response" in chunk} == {whole.body()["id"]}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Unavailable("the engine died"), "server_error"),
        (errors.ResourceExhausted("the engine died"), "rate_limit_exceeded"),
        (errors.FailedPrecondition("the engine died"), "invalid_prompt"),
    ],
)
def test_a_failed_stream(error: errors.AgentmemError, code: str) -> None:
    stream = answer()
    begun = streamed(stream, started(), delta("half an ans"))
    (last,) = told(list(stream.failed(error)))
    assert (last["type"], last["sequence_number"]) == ("response.failed", len(begun))
    assert last["response"]["error"] == {"code": code, "message": "the engine died"}
    assert last["response"]["status"] == "failed"
    assert [item["status"] for item in last["response"]["output"]] == ["incomplete"]


def test_the_request_is_told() -> None:
    tool = {"type": "function", "name": "look", "description": "Look.", "parameters": {"type": "object"}}
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    whole = answer(tools=[tool], tool_choice="none", text={"format": schema}, store=False, top_p=0.5)
    for event in (started(), finished()):
        whole.add(0, event)
    response = Response.model_validate(whole.body())
    assert (response.tool_choice, response.top_p, response.parallel_tool_calls) == ("none", 0.5, True)
    assert response.tools[0].to_dict() == {**tool, "strict": None}
    body = whole.body()
    assert body["text"]["format"] == {**schema, "description": None}
    assert body["store"] is False


@pytest.mark.parametrize(("agent", "asked", "told"), [("bob", None, True), ("bob", False, False), ("", True, False)])
def test_what_nobody_keeps_is_not_stored(agent: str, asked: bool | None, told: bool) -> None:
    whole = answer(store=asked)
    whole.agent_id = agent
    assert whole.body()["store"] is told
