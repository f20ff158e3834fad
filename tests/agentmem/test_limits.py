import json
import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import agentmem
from agentmem.errors import InvalidArgument
from agentmem.limits import MAX_STOPS, SAMPLING
from agentmem.v1 import inference_pb2, types_pb2
from agentmem.validation import MAX_STOP_BYTES, MAX_TOP_LOGPROBS
from gateway.api.chat import ChatRequest, chat_exchange
from gateway.api.exchange import Incoming
from gateway.api.messages_schema import MessagesRequest
from gateway.api.responses_schema import ResponseRequest
from gateway.api.transcoding import message_model, read_json
from inference_service.servicers.requests import generate_request

INCOMING = Incoming("default", "", "0" * 32, 7)
BODY: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "x"}]}


def contract(parameter: str, value: float) -> None:
    given: Any = {3: value} if parameter == "logit_bias" else value
    sampling = types_pb2.Sampling(**{parameter: given})
    key = types_pb2.AgentKey(namespace="n", agent_id="a", model_id="m")
    generate_request(inference_pb2.GenerateRequest(key=key, prompt="x", sampling=sampling))


def rest(parameter: str, value: float) -> None:
    given: Any = {"3": value} if parameter == "logit_bias" else value
    body = {"key": {"agent_id": "a", "model_id": "m"}, "prompt": "x", "sampling": {parameter: given}}
    model = message_model(inference_pb2.GenerateRequest.DESCRIPTOR)
    request = inference_pb2.GenerateRequest()
    read_json(json.dumps(body).encode(), model, request)
    request.key.namespace = "n"
    generate_request(request)


def openai(parameter: str, value: float) -> None:
    ChatRequest(**BODY, **{parameter: {"3": value} if parameter == "logit_bias" else value})


def responses(parameter: str, value: float) -> None:
    ResponseRequest(model="demo", input="x", **{parameter: value})  # type: ignore[arg-type]


def anthropic(parameter: str, value: float) -> None:
    MessagesRequest(**BODY, max_tokens=1, **{parameter: value})


def workflows(parameter: str, value: float) -> None:
    from gateway.workflows.definition.schema import Sampling

    Sampling(**{parameter: value})


Door = Callable[[str, float], None]
_EACH = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
DOORS: dict[Door, tuple[str, ...]] = {
    contract: (*_EACH, "logit_bias"),
    rest: (*_EACH, "logit_bias"),
    openai: (*_EACH, "logit_bias"),
    responses: ("temperature", "top_p"),
    anthropic: ("top_p", "top_k"),  # its temperature is from 0 to 1, as Anthropic documents it
}
if find_spec("gateway.workflows"):
    DOORS[workflows] = ("temperature", "top_p", "top_k", "seed", "repetition_penalty")
_WHOLE = ("top_k", "seed")
MEANT = {"top_p": 0.0, "top_k": -1}
"""Taken by OpenAI's and Anthropic's dialects besides: the likeliest token alone, and all tokens."""


LINES = [
    pytest.param(door, parameter, id=f"{door.__name__}-{parameter}")
    for door, parameters in DOORS.items()
    for parameter in parameters
]


@pytest.mark.parametrize(("door", "parameter"), LINES)
def test_every_door_takes_what_the_table_says(door: Door, parameter: str) -> None:
    bounds = SAMPLING[parameter]
    lowest = 1e-6 if bounds.open else bounds.low
    for good in (lowest, bounds.high):
        door(parameter, int(good) if parameter in _WHOLE else good)
    beyond = [bounds.low - 0.001, bounds.high * 1.001, *([bounds.low] if bounds.open else []), 1e-38 * bounds.low]
    bad: list[float] = [-1, int(bounds.high) + 1] if parameter in _WHOLE else [*beyond, math.nan, math.inf, -math.inf]
    for value in bad:
        meant = door in (openai, responses, anthropic) and MEANT.get(parameter) == value
        if value in bounds or meant or (value < 0 and parameter in _WHOLE and door is contract):
            continue  # protobuf has no such number
        with pytest.raises((InvalidArgument, ValidationError, OverflowError, ValueError)):
            door(parameter, value)


def test_every_number_of_the_contract_has_bounds() -> None:
    assert SAMPLING.keys() == {field.name for field in types_pb2.Sampling.DESCRIPTOR.fields} - {"ignore_eos"}
    assert all(bounds.low < bounds.high for bounds in SAMPLING.values())


@pytest.mark.parametrize(
    ("most", "beyond"),
    [
        ({"stop": "é" * (MAX_STOP_BYTES // 2)}, {"stop": "é" * (MAX_STOP_BYTES // 2) + "x"}),
        (
            {"logprobs": True, "top_logprobs": MAX_TOP_LOGPROBS},
            {"logprobs": True, "top_logprobs": MAX_TOP_LOGPROBS + 1},
        ),
    ],
)
def test_worker_and_gateway_draw_the_same_line(most: dict[str, Any], beyond: dict[str, Any]) -> None:
    generate_request(chat_exchange(ChatRequest(**BODY, **most), INCOMING).turns[0])
    with pytest.raises(ValueError):
        ChatRequest(**BODY, **beyond)
    unchecked = ChatRequest(**BODY).model_copy(update=beyond)
    with pytest.raises(InvalidArgument):
        generate_request(chat_exchange(unchecked, INCOMING).turns[0])


def test_the_contract_says_so() -> None:
    proto = (Path(agentmem.__file__).parent / "v1" / "inference.proto").read_text()
    assert f"at most {MAX_STOPS}, each of 1 to {MAX_STOP_BYTES} bytes" in proto
    assert f"(at most {MAX_TOP_LOGPROBS})" in proto
