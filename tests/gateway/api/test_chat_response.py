from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.chat import ChatAnswer
from gateway.api.exchange import SseEvent
from gateway.api.validation import Json
from tests.gateway.scripted import TOLD_VERSION, delta, finished, started


def answer(**options: Any) -> ChatAnswer:
    return ChatAnswer("chatcmpl-1", 7, "demo", **{"logprobs": False, **options})


def whole(*events: inference_pb2.GenerateResponse, **options: Any) -> Json:
    made = answer(**options)
    for event in events:
        made.add(0, event)
    return made.body()


def told(events: list[SseEvent]) -> list[Json]:
    return [data for data, _ in events if isinstance(data, dict)]


def test_completion() -> None:
    told = whole(started(), delta("Hel"), delta("lo"), finished())
    assert told["object"] == "chat.completion"
    assert told["choices"][0]["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert told["choices"][0]["logprobs"] is None
    assert told["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 3,
        "total_tokens": 23,
        "prompt_tokens_details": {"cached_tokens": 12},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert told["agentmem"]["match"] == "extend"
    assert told["agentmem"]["cached"] == {"hot": 7, "warm": 5}
    assert told["agentmem"]["version"] == TOLD_VERSION
    assert told["agentmem"]["durable"] is True
    assert told["agentmem"]["timings"]["time_to_first_token"] == 0.12


def test_a_stream_holds_nothing_of_what_it_has_said() -> None:
    stream = answer(logprobs=True)
    token = inference_pb2.TokenLogprob(token_id=1, logprob=-0.5, token_bytes=b"lo")
    for event in (started(), delta("lo", token, reasoning="hm"), finished()):
        list(stream.events(0, event))
    (heard,) = stream.heard
    assert (heard.texts, heard.reasoning, heard.logprobs) == ([], [], [])
    assert heard.finished.durable


def test_reasoning_is_no_content() -> None:
    asked = inference_pb2.TokenLogprob(token_id=1, logprob=-0.5, token_bytes=b"I", reasoning=True)
    events = [started(), delta("", asked, reasoning="I "), delta("Hel", reasoning="muse."), delta("lo"), finished()]
    events[-1].finished.usage.reasoning_tokens = 2
    body = whole(*events, logprobs=True)
    (choice,) = body["choices"]
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("Hello", "I muse.")
    assert choice["logprobs"]["content"] == [], "the content's alone"
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    stream = answer(logprobs=True)
    chunks = told([said for event in events for said in stream.events(0, event)])
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:-1]] == [
        {"reasoning_content": "I "},
        {"reasoning_content": "muse."},
        {"content": "Hel"},
        {"content": "lo"},
    ]


@given(st.lists(st.text(max_size=5)), st.booleans())
def test_chunks_tell_the_whole_text(texts: list[str], include_usage: bool) -> None:
    stream = answer(include_usage=include_usage)
    events = [started(), *(delta(text) for text in texts), finished(types_pb2.FINISH_REASON_LENGTH)]
    chunks = told([said for event in events for said in stream.events(0, event)] + list(stream.closing())[:-1])
    (choice,) = whole(*events)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("".join(texts), "length")
    with_choices = [chunk for chunk in chunks if chunk["choices"]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in with_choices) == "".join(texts)
    assert with_choices[0]["choices"][0]["delta"]["role"] == "assistant"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in with_choices]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-1"}
    assert "agentmem" in with_choices[-1]
    if include_usage:
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["total_tokens"] == 23
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    else:
        assert all("usage" not in chunk for chunk in chunks)


def test_logprobs() -> None:
    token = inference_pb2.TokenLogprob(
        token_id=5,
        logprob=-0.5,
        token_bytes=b"\xf0\x9f",
        top=[inference_pb2.TokenAlternative(token_id=6, logprob=-1.5, token_bytes=b"a")],
    )
    entry = {
        "token": "\ufffd",
        "logprob": -0.5,
        "bytes": [0xF0, 0x9F],
        "top_logprobs": [{"token": "a", "logprob": -1.5, "bytes": [97]}],
    }
    body = whole(started(), delta("", token), finished(), logprobs=True)
    assert body["choices"][0]["logprobs"] == {"content": [entry], "refusal": None}
    # A token inside a character has no text yet, but its log-probability is told.
    (chunk,) = told(list(answer(logprobs=True).events(0, delta("", token))))
    assert chunk["choices"][0]["logprobs"]["content"] == [entry]
    assert list(answer().events(0, delta(""))) == []
