"""How tokens are chosen where a request does not say."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentmem.v1 import types_pb2
from inference_service.domain import Sampling
from inference_service.models.sampling_defaults import FILE, sampling_defaults

QWEN = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
"""Qwen2.5-0.5B-Instruct's."""


def defaults(directory: Path, said: Any) -> Sampling:
    (directory / FILE).write_text(said if isinstance(said, str) else json.dumps(said))
    return sampling_defaults(directory)


def test_they_are_those_of_the_model(tmp_path: Path) -> None:
    assert defaults(tmp_path, QWEN) == Sampling(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05)


def test_a_model_that_says_nothing_samples_by_its_own_probabilities(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == Sampling(temperature=1.0)
    assert defaults(tmp_path, {"eos_token_id": [1, 2]}) == Sampling(temperature=1.0)


def test_do_sample_false_is_greedy(tmp_path: Path) -> None:
    assert defaults(tmp_path, {"do_sample": False, "temperature": 0.6}) == Sampling(temperature=0.0)


@pytest.mark.parametrize(
    "said",
    ["{", "[]", {"temperature": "hot", "top_p": 0, "top_k": -1, "min_p": True, "repetition_penalty": None}, "5"],
)
def test_what_makes_no_sense_is_as_if_it_were_not_there(tmp_path: Path, said: Any) -> None:
    assert defaults(tmp_path, said) == Sampling(temperature=1.0)


def test_a_request_overrides_what_it_says() -> None:
    model = Sampling(temperature=0.7, top_p=0.8, top_k=20)
    assert model.with_given(types_pb2.Sampling()) == model
    given = types_pb2.Sampling(temperature=0, seed=5, logit_bias={3: 1.0}, ignore_eos=True)
    asked = Sampling(temperature=0, top_p=0.8, top_k=20, seed=5, logit_bias={3: 1.0}, ignore_eos=True)
    assert model.with_given(given) == asked
