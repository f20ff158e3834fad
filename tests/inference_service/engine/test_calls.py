"""Calls of tools through the engine, of a model that makes some: what is told, and what stays in the ledger."""

import json
from typing import Any, NamedTuple

import pytest

from agentmem.v1 import types_pb2
from benchmarks.loading import load
from inference_service.domain import MessagesInput, Sampling
from inference_service.engine.generation import Generated
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import begin, run
from tests.scripted_model import write_scripted

TOOLS = ({"type": "function", "function": {"name": "get_weather"}},)


@pytest.fixture(scope="module", params=[False, True], ids=["ordinary markers", "special markers"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    directory = write_scripted(tmp_path_factory.mktemp("m"), special_markers=request.param)
    return load("scripted", str(directory), hashes=ContentHashes(directory / "hashes.json"))


class Answer(NamedTuple):
    text: str
    calls: list[tuple[str, Any]]
    generated: Generated
    ledger: bytes


def answer(model: LoadedModel, user: str, *, max_tokens: int = 30, stop: tuple[str, ...] = ()) -> Answer:
    chat = MessagesInput(({"role": "user", "content": user},), TOOLS)
    prompt = model.renderer.encode(model.renderer.messages(chat, generation_prompt=True, parse_special=False))
    turn = begin(
        model, prompt, max_tokens, Sampling(), stop=stop, call_syntax=model.call_syntax, tools=TOOLS, top_logprobs=None
    )
    run(model)
    assert turn.whole
    events, generated = turn.events, turn.generated
    calls = [call for event in events for call in event.calls] + list(generated.rest.calls)
    return Answer(
        "".join(event.text for event in events) + generated.rest.text,
        [(call.name, json.loads(call.arguments_json)) for call in calls],
        generated,
        model.tokenizer.decode(generated.token_ids),
    )


def test_calls_are_told_and_stay_in_the_ledger_as_they_were_written(model: LoadedModel) -> None:
    told = answer(model, "hi")
    assert (told.text, told.calls) == ("I look.", [("get_weather", {"city": "Paris"})])
    assert told.generated.reason == types_pb2.FINISH_REASON_TOOL_CALLS
    call = b'<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    assert told.ledger == b"I look.\n" + call + b"<|im_end|>"


def test_a_stop_string_counts_in_text_and_not_in_calls(model: LoadedModel) -> None:
    assert answer(model, "hi", stop=("Paris",)).calls == [("get_weather", {"city": "Paris"})]
    told = answer(model, "hi", stop=("look",))
    assert (told.text, told.calls, told.ledger) == ("I ", [], b"I")
    # Found only when the end of the turn decides that there was no call.
    late = answer(model, "broken", stop=("get_w", "Paris"))
    assert (late.text, late.generated.stop_string) == ('Well, <tool_call>{"name": ', "get_w")
    assert late.generated.reason == types_pb2.FINISH_REASON_STOP_STRING
    assert late.ledger == b"Well, "
