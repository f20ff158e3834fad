"""Log-probabilities of tokens and of the most likely others: right, and without a sort of the vocabulary."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_service.domain import Sampling
from inference_service.engine.sampling import TokenSampler, likeliest


@given(
    st.sampled_from([1, 3, 127, 128, 129, 640, 1000]),
    st.integers(1, 20),
    st.sampled_from([mx.float32, mx.bfloat16, mx.float16]),
    st.sampled_from([1, 2, 5, 1000]),
    st.booleans(),
    st.integers(0, 1 << 30),
)
def test_the_likeliest_are_those_of_a_stable_sort(
    vocabulary: int, count: int, dtype: mx.Dtype, levels: int, excluded: bool, seed: int
) -> None:
    levels_of = np.random.default_rng(seed).integers(0, levels, vocabulary)
    values = mx.array(-levels_of * 0.75).astype(dtype)
    if excluded:
        values = mx.where(mx.array(levels_of % 2 == 0), values, -mx.inf)
    ids, found = likeliest(values, count)
    as_float = np.array(values.astype(mx.float32))
    wanted = np.argsort(-as_float, kind="stable")[:count]
    assert ids.tolist() == wanted.tolist()
    assert found.tolist() == as_float[wanted].tolist()


def test_a_sampler_computes_them_in_its_step_and_returns_them_in_order() -> None:
    sampler = TokenSampler(Sampling(), 2)
    steps = [mx.log(mx.array([[0.1, 0.7, 0.2]])), mx.log(mx.array([[0.25, 0.25, 0.5]]))]
    assert [int(sampler(logprobs).item()) for logprobs in steps] == [1, 2]
    own, top = sampler.next_logprobs()
    assert own == pytest.approx(np.log(0.7))
    assert [token for token, _ in top] == [1, 2]
    assert [value for _, value in top] == pytest.approx(np.log([0.7, 0.2]))
    assert [token for token, _ in sampler.next_logprobs()[1]] == [2, 0], "of equals the lowest id"
    sampler(steps[0])
    sampler.rewind([1, 2])
    sampler(steps[1])
    assert sampler.next_logprobs()[0] == pytest.approx(np.log(0.5)), "what was sampled ahead was dropped"


def test_no_step_sorts_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took 12 ms a row for 128K tokens, and every row waited for it."""
    sorted_at_once: list[int] = []

    def watched(original: Any) -> Any:
        def called(array: mx.array, *rest: Any, **more: Any) -> Any:
            sorted_at_once.append(array.size)
            return original(array, *rest, **more)

        return called

    for name in ("sort", "argsort", "argpartition", "topk"):
        monkeypatch.setattr(mx, name, watched(getattr(mx, name)))
    sampler, logits = TokenSampler(Sampling(), 5), mx.random.normal((1, 1 << 15), key=mx.random.key(1))
    token = int(sampler(logits - mx.logsumexp(logits)).item())
    own, top = sampler.next_logprobs()
    assert sorted_at_once and max(sorted_at_once) <= 5 * 128
    assert top[0] == (token, own) and len(top) == 5, "greedy"
