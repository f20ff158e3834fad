from hypothesis import given
from hypothesis import strategies as st

from agentmem.v1 import inference_pb2
from gateway.api.responses_output import Output
from gateway.api.validation import Json


def said(text: str = "", *calls: str, tokens: tuple[bytes, ...] = (), reasoning: str = "") -> inference_pb2.Delta:
    return inference_pb2.Delta(
        reasoning=reasoning,
        text=text,
        logprobs=[inference_pb2.TokenLogprob(token_id=1, logprob=-0.5, token_bytes=token) for token in tokens],
        tool_calls=[
            inference_pb2.ToolCall(id=name, name="look", arguments_json=f'{{"at": "{name}"}}') for name in calls
        ],
    )


def put_out(*deltas: inference_pb2.Delta, logprobs: bool = False, cut_short: bool = False) -> tuple[Output, list[Json]]:
    output = Output("7", logprobs=logprobs)
    events = [event for delta in deltas for event in output.add(delta)]
    return output, [*events, *output.end(cut_short=cut_short)]


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


@given(DELTAS, st.booleans(), st.booleans())
def test_what_the_events_tell_is_what_there_is(
    deltas: list[inference_pb2.Delta], logprobs: bool, cut_short: bool
) -> None:
    for number, call in enumerate(call for delta in deltas for call in delta.tool_calls):
        call.id += str(number)
    output, events = put_out(*deltas, logprobs=logprobs, cut_short=cut_short)
    assert built(events) == output.items
    texts = [item["content"][0]["text"] for item in output.items if item["type"] == "message"]
    assert "".join(texts) == "".join(delta.text for delta in deltas)
    thoughts = [item["content"][0]["text"] for item in output.items if item["type"] == "reasoning"]
    assert "".join(thoughts) == "".join(delta.reasoning for delta in deltas)
    called = [item["call_id"] for item in output.items if item["type"] == "function_call"]
    assert called == [call.id for delta in deltas for call in delta.tool_calls]
    assert output.items, "an answer that says nothing is an empty text"
    assert len({item["id"] for item in output.items}) == len(output.items)
    for index in range(len(output.items)):
        kinds = [event["type"] for event in events if event["output_index"] == index]
        assert kinds[0] == "response.output_item.added" and kinds[-1] == "response.output_item.done"


def test_text_and_calls_are_items_of_their_own() -> None:
    output, _ = put_out(said("I look.", "a", "b"), said("Then"))
    assert [item["type"] for item in output.items] == ["message", "function_call", "function_call", "message"]
    assert [item["status"] for item in output.items] == ["completed"] * 4
    assert output.items[1] == {
        "id": "fc_7_ca234c55",
        "type": "function_call",
        "call_id": "a",
        "name": "look",
        "arguments": '{"at": "a"}',
        "status": "completed",
    }


def test_reasoning_is_an_item_of_its_own() -> None:
    output, events = put_out(said(reasoning="I "), said("Hel", reasoning="muse."), said("lo"))
    assert output.items[0] == {
        "id": "rs_7_0",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "I muse."}],
        "status": "completed",
    }
    assert output.items[1]["content"][0]["text"] == "Hello"
    assert [event["type"].removeprefix("response.") for event in events if event["output_index"] == 0] == [
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
    ]
    unfinished, _ = put_out(said(reasoning="I muse"), cut_short=True)
    assert [(item["type"], item["status"]) for item in unfinished.items] == [("reasoning", "incomplete")]


def test_log_probabilities_wait_for_their_text_and_calls_have_none() -> None:
    deltas = (
        said(tokens=(b"\xc3",)),
        said("é", tokens=(b"\xa9",)),
        said(tokens=(b"{",)),
        said("", "a", tokens=(b"}",)),
    )
    output, events = put_out(*deltas, logprobs=True)
    (message, _) = output.items
    assert [entry["bytes"] for entry in message["content"][0]["logprobs"]] == [[0xC3], [0xA9]]
    (delta,) = [event for event in events if event["type"] == "response.output_text.delta"]
    assert delta["logprobs"] == message["content"][0]["logprobs"]


def test_log_probabilities_of_the_last_tokens_are_told() -> None:
    output, events = put_out(said("a", tokens=(b"a",)), said(tokens=(b"<end>",)), logprobs=True)
    assert [entry["token"] for entry in output.items[0]["content"][0]["logprobs"]] == ["a", "<end>"]
    assert [event["delta"] for event in events if event["type"] == "response.output_text.delta"] == ["a", ""]
