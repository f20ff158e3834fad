"""The worker and the gateway refuse the same turns, and the contract says which."""

from pathlib import Path
from typing import Any

import pytest

import agentmem
from agentmem.errors import InvalidArgument
from agentmem.validation import MAX_PENALTY, MAX_STOP_BYTES, MAX_STOPS, MAX_TOP_LOGPROBS
from gateway.api.chat import ChatRequest, to_generate
from gateway.api.exchange import Incoming
from inference_service.servicers.requests import generate_request

INCOMING = Incoming("default", "", "0" * 32, 7)
BODY: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("most", "beyond"),
    [
        ({"stop": ["x"] * MAX_STOPS}, {"stop": ["x"] * (MAX_STOPS + 1)}),
        ({"stop": "é" * (MAX_STOP_BYTES // 2)}, {"stop": "é" * (MAX_STOP_BYTES // 2) + "x"}),
        (
            {"logprobs": True, "top_logprobs": MAX_TOP_LOGPROBS},
            {"logprobs": True, "top_logprobs": MAX_TOP_LOGPROBS + 1},
        ),
        ({"presence_penalty": MAX_PENALTY}, {"presence_penalty": MAX_PENALTY + 0.1}),
        ({"frequency_penalty": -MAX_PENALTY}, {"frequency_penalty": -MAX_PENALTY - 0.1}),
    ],
)
def test_both_draw_the_same_line(most: dict[str, Any], beyond: dict[str, Any]) -> None:
    generate_request(to_generate(ChatRequest(**BODY, **most), INCOMING))
    with pytest.raises(ValueError):
        ChatRequest(**BODY, **beyond)
    unchecked = ChatRequest(**BODY).model_copy(update=beyond)
    with pytest.raises(InvalidArgument):
        generate_request(to_generate(unchecked, INCOMING))


def test_the_contract_says_so() -> None:
    contract = Path(agentmem.__file__).parent / "v1"
    proto = (contract / "inference.proto").read_text()
    assert f"at most {MAX_STOPS}, each of 1 to {MAX_STOP_BYTES} bytes" in proto
    assert f"(at most {MAX_TOP_LOGPROBS})" in proto
    assert (contract / "types.proto").read_text().count(f"in [{-MAX_PENALTY:g}, {MAX_PENALTY:g}]") == 2
