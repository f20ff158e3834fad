import json
from typing import Any

import pytest

from agentmem.errors import InvalidArgument
from gateway.api.completions import CompletionRequest
from gateway.api.validation import parse_body


def parse(**fields: Any) -> CompletionRequest:
    return parse_body(json.dumps({"model": "m", "prompt": "hi", **fields}).encode(), CompletionRequest)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompts(prompt: Any, prompts: Any) -> None:
    assert parse(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    "fields",
    [
        {"suffix": None, "echo": None, "best_of": None, "logprobs": None, "user": "u"},
        {"echo": False, "best_of": 1, "logprobs": 0},
        {"n": 2, "best_of": 2, "logprobs": 5},
        {"stop": ["x"], "seed": -1, "top_k": 3, "min_p": 0.5, "repetition_penalty": 1.1, "logit_bias": {"1": 1}},
    ],
)
def test_supported(fields: dict[str, Any]) -> None:
    assert parse(**fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt", None),
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", [1, "a"]),
        ("prompt", [-1]),
        ("prompt", [2**32]),
        ("prompt", ["a"] * 65),
        ("echo", True),
        ("echo", 0),
        ("suffix", "x"),
        ("logprobs", 6),
        ("logprobs", True),
        ("n", 17),
        ("max_tokens", 0),
        ("messages", ["hi"]),
        ("max_completion_tokens", 5),
    ],
)
def test_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(**{name: value})
    assert caught.value.field.partition(".")[0].partition("[")[0] == name
