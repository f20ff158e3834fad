"""The events of a turn as a response: the whole of it, and a stream of which a reader builds the same."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from agentmem import errors
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.exchange import SseEvent
from gateway.api.responses_output import ResponseAnswer
from gateway.api.validation import Json
from tests.gateway.scripted import delta, finished, started

from . import dialects

Event = inference_pb2.GenerateResponse
ANY_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
LOGPROBS = {"include": ["message.output_text.logprobs"]}
CUT_SHORT = types_pb2.FINISH_REASON_LENGTH


def answer(**fields: Any) -> ResponseAnswer:
    made = dialects.exchange("responses", **fields).answer
    assert isinstance(made, ResponseAnswer)
    return made


def said(text: str = "", *calls: str, tokens: tuple[bytes, ...] = (), reasoning: str = "") -> Event:
    logprobs = [inference_pb2.TokenLogprob(token_id=1, logprob=-0.5, token_bytes=token) for token in tokens]
    made = delta(text, *logprobs, reasoning=reasoning)
    made.delta.tool_calls.extend(
        inference_pb2.ToolCall(id=name, name="look", arguments_json=f'{{"at": "{name}"}}') for name in calls
    )
    return made


def told(events: list[SseEvent]) -> list[Json]:
    """The events' data, each checked as the SDK's own type."""
    found = []
    for data, name in events:
        assert isinstance(data, dict)
        assert data["type"] == name
        ANY_EVENT.validate_python(data)
        found.append(json.loads(json.dumps(data)))
    return found


def streamed(stream: ResponseAnswer, *events: Event) -> list[Json]:
    return told([said for event in events for said in stream.events(0, event)])


def put_out(*deltas: Event, reason: Any = types_pb2.FINISH_REASON_STOP, **fields: Any) -> tuple[Json, list[Json]]:
    """The response, and the events between its beginning and its end."""
    events, stream, whole = [started(), *deltas, finished(reason)], answer(**fields), answer(**fields)
    chunks = [*streamed(stream, *events), *told(list(stream.closing()))]
    for event in events:
        whole.add(0, event)
    body = whole.body()
    assert [chunk["sequence_number"] for chunk in chunks] == list(range(len(chunks)))
    assert [chunk["type"] for chunk in chunks[:2]] == ["response.created", "response.in_progress"]
    assert chunks[-1]["type"] == f"response.{body['status']}"
    assert chunks[-1]["response"] == body
    assert {chunk["response"]["id"] for chunk in chunks if "response" in chunk} == {body["id"]}
    return body, chunks[2:-1]


def built(events: list[Json]) -> list[Json]:
    """The items as a reader builds them, of additions and deltas alone."""
    items: list[Json] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            items.append({**event["item"]})
        elif kind == "content_part.added":
            items[event["output_index"]]["content"] = [dict(event["part"])]
        elif kind == "output_text.delta":
            part = items[event["output_index"]]["content"][0]
            part["text"] += event["delta"]
            part["logprobs"] = part["logprobs"] + event["logprobs"]
        elif kind == "reasoning_text.delta":
            items[event["output_index"]]["content"][0]["text"] += event["delta"]
        elif kind == "function_call_arguments.delta":
            items[event["output_index"]]["arguments"] += event["delta"]
        elif kind == "output_item.done":
            items[event["output_index"]]["status"] = event["item"]["status"]
            assert items[event["output_index"]] == event["item"]
    return items


DELTAS = st.lists(
    st.builds(
        lambda text, calls, tokens, reasoning: said(text, *calls, tokens=tuple(tokens), reasoning=reasoning),
        st.text(max_size=3),
        st.lists(st.sampled_from(["a", "b"]), max_size=2),
        st.lists(st.binary(max_size=2), max_size=2),
        st.text(max_size=2),
    ),
    max_size=6,
)


@given(DELTAS, st.sampled_from([{}, LOGPROBS]), st.sampled_from([types_pb2.FINISH_REASON_STOP, CUT_SHORT]))
def test_what_the_events_tell_is_what_there_is(deltas: list[Event], fields: Any, reason: Any) -> None:
    for number, call in enumerate(call for event in deltas for call in event.delta.tool_calls):
        call.id += str(number)
    body, events = put_out(*deltas, reason=reason, **fields)
    items = body["output"]
    assert built(events) == items
    texts = [item["content"][0]["text"] for item in items if item["type"] == "message"]
    assert "".join(texts) == "".join(event.delta.text for event in deltas)
    thoughts = [item["content"][0]["text"] for item in items if item["type"] == "reasoning"]
    assert "".join(thoughts) == "".join(event.delta.reasoning for event in deltas)
    called = [item["call_id"] for item in items if item["type"] == "function_call"]
    assert called == [call.id for event in deltas for call in event.delta.tool_calls]
    assert items, "an answer that says nothing is an empty text"
    assert len({item["id"] for item in items}) == len(items)
    for index in range(len(items)):
        kinds = [event["type"] for event in events if event["output_index"] == index]
        assert kinds[0] == "response.output_item.added" and kinds[-1] == "response.output_item.done"


def test_text_and_calls_are_items_of_their_own() -> None:
    body, _ = put_out(said("I look.", "a", "b"), said("Then"))
    items = body["output"]
    assert [item["type"] for item in items] == ["message", "function_call", "function_call", "message"]
    assert [item["status"] for item in items] == ["completed"] * 4
    number = body["id"].removeprefix("resp_")
    call = {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"at": "a"}', "status": "completed"}
    assert items[1] == {"id": f"fc_{number}_ca234c55", **call}


def test_reasoning_is_an_item_of_its_own() -> None:
    body, events = put_out(said(reasoning="I "), said("Hel", reasoning="muse."), said("lo"))
    thought, text = body["output"]
    assert (thought["type"], thought["summary"], thought["status"]) == ("reasoning", [], "completed")
    assert thought["id"] == f"rs_{body['id'].removeprefix('resp_')}_0"
    assert thought["content"] == [{"type": "reasoning_text", "text": "I muse."}]
    assert text["content"][0]["text"] == "Hello"
    assert [event["type"].removeprefix("response.") for event in events if event["output_index"] == 0] == [
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
    ]
    unfinished, _ = put_out(said(reasoning="I muse"), reason=CUT_SHORT)
    assert [(item["type"], item["status"]) for item in unfinished["output"]] == [("reasoning", "incomplete")]


def test_log_probabilities_wait_for_their_text_and_calls_have_none() -> None:
    waiting = (said(tokens=(b"\xc3",)), said("é", tokens=(b"\xa9",)))
    body, events = put_out(*waiting, said(tokens=(b"{",)), said("", "a", tokens=(b"}",)), **LOGPROBS)
    (message, _) = body["output"]
    assert [entry["bytes"] for entry in message["content"][0]["logprobs"]] == [[0xC3], [0xA9]]
    (piece,) = [event for event in events if event["type"] == "response.output_text.delta"]
    assert piece["logprobs"] == message["content"][0]["logprobs"]
    body, events = put_out(said("a", tokens=(b"a",)), said(tokens=(b"<end>",)), **LOGPROBS)
    assert [entry["token"] for entry in body["output"][0]["content"][0]["logprobs"]] == ["a", "<end>"]
    assert [event["delta"] for event in events if event["type"] == "response.output_text.delta"] == ["a", ""]


def whole(*events: Event, agent: str = "bob", **fields: Any) -> Json:
    made = answer(**fields)
    made.agent_id = agent
    for event in events:
        made.add(0, event)
    return made.body()


def test_response() -> None:
    tool = {"type": "function", "name": "look", "description": "Look.", "parameters": {"type": "object"}}
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    asked = {"instructions": "be nice", "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.5}
    held: Any = {"tools": [tool], "tool_choice": "none", "text": {"format": schema}, "reasoning": {"effort": "low"}}
    body = whole(started(), delta("Hel"), delta("lo"), finished(), **asked, **held)
    response = Response.model_validate(body)
    assert (response.status, response.output_text, response.error) == ("completed", "Hello", None)
    assert {name: body[name] for name in asked} == asked
    assert (response.tool_choice, response.parallel_tool_calls, body["reasoning"]["effort"]) == ("none", True, "low")
    assert response.tools[0].to_dict() == {**tool, "strict": None}
    assert body["text"]["format"] == {**schema, "description": None}
    assert body["usage"] == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 12, "cache_write_tokens": 8},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 23,
    }
    assert (body["agentmem"]["agent_id"], body["agentmem"]["match"]) == ("bob", "extend")


def test_the_limit_makes_it_incomplete() -> None:
    body = whole(started(), delta("Hel"), finished(CUT_SHORT, kept=False))
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    assert body["usage"]["input_tokens_details"]["cache_write_tokens"] == 0
    assert Response.model_validate(body).incomplete_details is not None


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


@pytest.mark.parametrize(("agent", "asked", "stored"), [("bob", None, True), ("bob", False, False), ("", True, False)])
def test_what_nobody_keeps_is_not_stored(agent: str, asked: bool | None, stored: bool) -> None:
    assert whole(agent=agent, store=asked)["store"] is stored
