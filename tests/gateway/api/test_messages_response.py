import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem import errors
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.messages_output import MessageAnswer
from gateway.api.validation import Json
from tests.gateway.scripted import TOLD_VERSION, delta, finished, started

Event = inference_pb2.GenerateResponse


def answer(agent_id: str = "conv-1") -> MessageAnswer:
    made = MessageAnswer("msg_1", "demo")
    made.agent_id = agent_id
    return made


def calling(*names: str, text: str = "") -> Event:
    calls = [inference_pb2.ToolCall(id=f"id-{n}", name=n, arguments_json='{"x": {"é": [1]}}') for n in names]
    return Event(delta=inference_pb2.Delta(text=text, tool_calls=calls))


def whole(*events: Event, agent_id: str = "conv-1") -> Json:
    made = answer(agent_id)
    for event in events:
        made.add(0, event)
    return made.body()


def stream(*events: Event, agent_id: str = "conv-1") -> list[Json]:
    made = answer(agent_id)
    told = [said for event in events for said in made.events(0, event)] + list(made.closing())
    for said in told:
        assert isinstance(said.data, dict)
        assert said.name == said.data["type"]
    return [said.data for said in told if isinstance(said.data, dict)]


_GIVEN = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def accumulated(events: list[Json]) -> Json:
    """Return a stream's message; assert that its events have the documented order."""
    first, *rest, delta, last = events
    assert (first["type"], delta["type"], last) == ("message_start", "message_delta", {"type": "message_stop"})
    message = json.loads(json.dumps(first["message"]))
    assert (message["content"], message["stop_reason"]) == ([], None)
    open_block: Json | None = None
    parts: list[str] = []
    for event in rest:
        match event["type"]:
            case "ping":
                pass
            case "content_block_start":
                assert open_block is None
                assert event["index"] == len(message["content"])
                open_block, parts = dict(event["content_block"]), []
                message["content"].append(open_block)
            case "content_block_delta":
                assert open_block is not None
                assert event["index"] == len(message["content"]) - 1
                given = event["delta"]
                if given["type"] == "signature_delta":
                    open_block["signature"] = given["signature"]
                else:
                    parts.append(given[_GIVEN[given["type"]]])
            case "content_block_stop":
                assert open_block is not None
                assert event["index"] == len(message["content"]) - 1
                if open_block["type"] in ("text", "thinking"):
                    open_block[open_block["type"]] += "".join(parts)
                else:
                    open_block["input"] = json.loads("".join(parts))
                open_block = None
            case other:
                raise AssertionError(other)
    assert open_block is None
    return {**message, **delta["delta"], "usage": delta["usage"], "agentmem": delta["agentmem"]}


def test_message() -> None:
    told = whole(started(), delta("Hel"), delta("lo"), finished())
    assert (told["id"], told["type"], told["role"], told["model"]) == ("msg_1", "message", "assistant", "demo")
    assert told["content"] == [{"type": "text", "text": "Hello"}]
    assert (told["stop_reason"], told["stop_sequence"]) == ("end_turn", None)
    assert told["usage"] == {
        "input_tokens": 0,
        "cache_creation_input_tokens": 8,
        "cache_read_input_tokens": 12,
        "output_tokens": 3,
    }
    assert told["agentmem"]["agent_id"] == "conv-1"
    assert told["agentmem"]["cached"] == {"hot": 7, "warm": 5}
    assert told["agentmem"]["version"] == TOLD_VERSION


def test_whoever_asked_for_edits_is_told_that_there_were_none() -> None:
    none = {"applied_edits": []}
    asked = MessageAnswer("msg_1", "demo", managed=True)
    told = [said.data for event in (started(), finished()) for said in asked.events(0, event)]
    assert told[-1]["context_management"] == asked.body()["context_management"] == none
    assert "context_management" not in whole(started(), finished())
    assert "context_management" not in stream(started(), finished())[-2]


def test_what_it_thought_is_a_block_with_a_signature() -> None:
    events = [started(), delta("", reasoning="I "), delta("Hel", reasoning="muse."), delta("lo"), finished()]
    thought, said = whole(*events)["content"]
    assert (thought["type"], thought["thinking"], len(thought["signature"])) == ("thinking", "I muse.", 32)
    assert said == {"type": "text", "text": "Hello"}
    other, _ = whole(started(), delta("x", reasoning="other"), finished())["content"]
    assert other["signature"] != thought["signature"]
    silent = MessageAnswer("msg_1", "demo", thinking=False)
    for event in events:
        silent.add(0, event)
    assert silent.body()["content"] == [said]


_Delta = st.one_of(
    st.builds(lambda text, reasoning: delta(text, reasoning=reasoning), st.text(max_size=4), st.text(max_size=2)),
    st.builds(calling, st.sampled_from("abc"), text=st.text(max_size=2)),
)


@given(st.lists(_Delta, max_size=6), st.sampled_from(types_pb2.FinishReason.values()), st.booleans())
def test_a_stream_tells_what_the_message_says(deltas: list[Event], reason: Any, kept: bool) -> None:
    events = [started(), *deltas, finished(reason, kept=kept)]
    agent_id = "conv-1" if kept else ""
    message = whole(*events, agent_id=agent_id)
    assert accumulated(stream(*events, agent_id=agent_id)) == message
    blocks = message["content"]
    assert all(block[block["type"]] for block in blocks if block["type"] != "tool_use")
    for kind, name in (("text", "text"), ("thinking", "reasoning")):
        told = "".join(block[kind] for block in blocks if block["type"] == kind)
        assert told == "".join(getattr(event.delta, name) for event in deltas)
    called = [(block["id"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    assert called == [(call.id, {"x": {"é": [1]}}) for event in deltas for call in event.delta.tool_calls]


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (types_pb2.FINISH_REASON_STOP, "end_turn"),
        (types_pb2.FINISH_REASON_STOP_STRING, "stop_sequence"),
        (types_pb2.FINISH_REASON_LENGTH, "max_tokens"),
        (types_pb2.FINISH_REASON_CONTEXT, "model_context_window_exceeded"),
        (types_pb2.FINISH_REASON_TOOL_CALLS, "tool_use"),
    ],
)
def test_stop_reasons(reason: Any, word: str) -> None:
    last = finished(reason)
    last.finished.stop_string = "\n\n"
    told = whole(started(), last)
    assert (told["stop_reason"], told["stop_sequence"]) == (word, "\n\n" if word == "stop_sequence" else None)


def test_a_failure() -> None:
    (told,) = answer().failed(errors.Unavailable("the engine died"))
    assert told.name == "error"
    assert told.data == {"type": "error", "error": {"type": "overloaded_error", "message": "the engine died"}}
