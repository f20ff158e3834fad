from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentmem import errors
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.completions import CompletionAnswer
from gateway.api.exchange import SseEvent
from gateway.api.validation import Json
from tests.gateway.scripted import delta, finished, started


def answer(**options: Any) -> CompletionAnswer:
    return CompletionAnswer("cmpl-1", 7, "demo", **{"prompts": 1, "per_prompt": 1, "logprobs": False, **options})


def token(data: bytes, *top: bytes) -> inference_pb2.TokenLogprob:
    alternatives = [inference_pb2.TokenAlternative(token_id=6, logprob=-1.5, token_bytes=other) for other in top]
    return inference_pb2.TokenLogprob(token_id=5, logprob=-0.5, token_bytes=data, top=alternatives)


def objects(events: list[SseEvent]) -> list[Json]:
    return [data for data, _ in events if isinstance(data, dict)]


def test_usage_counts_each_prompt_once() -> None:
    whole = answer(prompts=2, per_prompt=3)
    for choice in range(6):
        whole.add(choice, started())
        whole.add(choice, finished(tokens=choice))
    usage = whole.body()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (40, 15, 55)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 24}


@given(st.lists(st.tuples(st.integers(0, 1), st.text(max_size=5))), st.booleans())
def test_chunks_tell_the_whole_text(said: list[tuple[int, str]], include_usage: bool) -> None:
    stream = answer(per_prompt=2, include_usage=include_usage)
    events = [(choice, started()) for choice in (0, 1)]
    events += [(choice, delta(text)) for choice, text in said]
    events += [(choice, finished(types_pb2.FINISH_REASON_LENGTH)) for choice in (0, 1)]
    streamed = [told for choice, event in events for told in stream.events(choice, event)]
    closing = list(stream.closing())
    assert closing[-1] == SseEvent("[DONE]")
    chunks = objects(streamed)
    for choice in (0, 1):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice]
        assert "".join(one["text"] for one in own) == "".join(text for index, text in said if index == choice)
        assert [one["finish_reason"] for one in own] == [None] * (len(own) - 1) + ["length"]
    assert sum("agentmem" in chunk for chunk in chunks) == 1
    if include_usage:
        (last,) = objects(closing)
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 6)
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)


def test_log_probabilities() -> None:
    whole, stream = answer(logprobs=True), answer(logprobs=True)
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
    whole = answer(logprobs=True)
    whole.add(0, delta("".join(texts), *(token(text.encode()) for text in texts)))
    offsets = whole.body()["choices"][0]["logprobs"]["text_offset"]
    assert offsets == [0, *accumulate(len(text) for text in texts)][: len(texts)]


def test_a_failed_stream_is_not_done() -> None:
    (last,) = answer().failed(errors.InvalidArgument("token_ids.ids[0]", "is too large"))
    assert isinstance(last.data, dict)
    assert last.data["error"]["param"] == "prompt"
