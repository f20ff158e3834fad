"""The answers of chats and of completions, whole and in chunks."""

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem import errors
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.chat import ChatAnswer
from gateway.api.completions import CompletionAnswer
from gateway.api.exchange import SseEvent
from gateway.api.validation import Json
from tests.gateway.scripted import TOLD_VERSION, delta, finished, started


def objects(events: list[SseEvent]) -> list[Json]:
    return [data for data, _ in events if isinstance(data, dict)]


def completion(**options: Any) -> CompletionAnswer:
    return CompletionAnswer("cmpl-1", 7, "demo", **options)


def answer(**options: Any) -> ChatAnswer:
    return ChatAnswer("chatcmpl-1", 7, "demo", **{"logprobs": False, **options})


def whole(*events: inference_pb2.GenerateResponse, **options: Any) -> Json:
    made = answer(**options)
    for event in events:
        made.add(0, event)
    return made.body()


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
    chunks = objects([said for event in events for said in stream.events(0, event)])
    assert [chunk["choices"][0]["delta"] for chunk in chunks[:-1]] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"reasoning_content": "I "},
        {"reasoning_content": "muse."},
        {"content": "Hel"},
        {"content": "lo"},
    ]


def test_log_probabilities_of_chats() -> None:
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
    (chunk,) = objects(list(answer(logprobs=True).events(0, delta("", token))))
    assert chunk["choices"][0]["logprobs"]["content"] == [entry]
    assert list(answer().events(0, delta(""))) == []


def token(data: bytes, *top: bytes) -> inference_pb2.TokenLogprob:
    alternatives = [inference_pb2.TokenAlternative(token_id=6, logprob=-1.5, token_bytes=other) for other in top]
    return inference_pb2.TokenLogprob(token_id=5, logprob=-0.5, token_bytes=data, top=alternatives)


def test_usage_counts_each_prompt_once() -> None:
    whole = completion(prompts=2, per_prompt=3)
    for choice in range(6):
        whole.add(choice, started())
        whole.add(choice, finished(tokens=choice))
    usage = whole.body()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (40, 15, 55)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 24}


@pytest.mark.parametrize("kind", [ChatAnswer, CompletionAnswer])
@given(st.lists(st.tuples(st.integers(0, 1), st.text(max_size=5))), st.booleans())
def test_chunks_tell_the_whole_text(kind: Any, said: list[tuple[int, str]], include_usage: bool) -> None:
    stream, whole = (kind("id-1", 7, "demo", per_prompt=2, include_usage=include_usage) for _ in range(2))
    events = [(choice, started()) for choice in (0, 1)]
    events += [(choice, delta(text)) for choice, text in said]
    events += [(choice, finished(types_pb2.FINISH_REASON_LENGTH)) for choice in (0, 1)]
    chunks = objects([told for choice, event in events for told in stream.events(choice, event)])
    closing = list(stream.closing())
    for choice, event in events:
        whole.add(choice, event)
    assert closing[-1] == SseEvent("[DONE]")
    for choice, told in enumerate(whole.body()["choices"]):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice]
        text = "".join(text for index, text in said if index == choice)
        assert "".join(one["text"] if "text" in one else one["delta"].get("content", "") for one in own) == text
        assert (told["text"] if "text" in told else told["message"]["content"]) == text
        assert [one["finish_reason"] for one in own] == [None] * (len(own) - 1) + [told["finish_reason"]]
        assert told["finish_reason"] == "length"
    assert {chunk["id"] for chunk in chunks} == {"id-1"}
    assert sum("agentmem" in chunk for chunk in chunks) == 1
    if include_usage:
        (last,) = objects(closing)
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 6)
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)


def test_log_probabilities_of_texts() -> None:
    whole, stream = completion(logprobs=True), completion(logprobs=True)
    events = [
        started(),
        delta("", token(b"\xf0\x9f")),
        delta("🌍a", token(b"\x8c\x8d", b"!"), token(b"a", b"a")),
        finished(),
    ]
    for event in events:
        whole.add(0, event)
    told = whole.body()["choices"][0]["logprobs"]
    assert told == {
        "tokens": ["bytes:\\xf0\\x9f", "bytes:\\x8c\\x8d", "a"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [{"bytes:\\xf0\\x9f": -0.5}, {"!": -1.5, "bytes:\\x8c\\x8d": -0.5}, {"a": -0.5}],
        "text_offset": [0, 0, 1],
    }
    chunks = [chunk["choices"][0] for event in events for chunk in objects(list(stream.events(0, event)))]
    for field, values in told.items():
        assert [value for chunk in chunks if chunk["logprobs"] for value in chunk["logprobs"][field]] == values


@given(st.lists(st.text(min_size=1, max_size=3)))
def test_offsets_are_where_tokens_begin(texts: list[str]) -> None:
    whole = completion(logprobs=True)
    whole.add(0, delta("".join(texts), *(token(text.encode()) for text in texts)))
    offsets = whole.body()["choices"][0]["logprobs"]["text_offset"]
    assert offsets == [0, *accumulate(len(text) for text in texts)][: len(texts)]


def test_a_failed_stream_is_not_done() -> None:
    (last,) = completion().failed(errors.InvalidArgument("token_ids.ids[0]", "is too large"))
    assert isinstance(last.data, dict)
    assert last.data["error"]["param"] == "prompt"
