"""The next tokens of rows together are those of each row alone: biases, filters, penalties and random numbers."""

import threading

import mlx.core as mx
import numpy as np
import pytest

from inference_service.domain import Sampling
from inference_service.engine import choosing
from inference_service.engine.choosing import next_tokens
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.paged.sequence import BlockTable, Sequence
from inference_service.engine.sampling import Filters, TokenSampler, mixed, penalties, sampled

VOCABULARY = 500
KINDS = (
    Sampling(),
    Sampling(temperature=0.8, seed=1),
    Sampling(temperature=0.8, seed=2),
    Sampling(temperature=0.8, top_p=0.9, seed=1),
    Sampling(temperature=1.5, top_k=7, seed=3, logit_bias={3: 4.0, 9: -100.0}),
    Sampling(logit_bias={int(token): -100.0 for token in range(0, VOCABULARY, 2)}),
    Sampling(temperature=0.7, min_p=0.05, seed=4, presence_penalty=1.5),
    Sampling(repetition_penalty=1.3),
    Sampling(temperature=1.0, seed=5, frequency_penalty=0.5, logit_bias={499: 2.0}),
)


def job_of(sampling: Sampling) -> TurnJob:
    """Return a turn of a prompt of some tokens, the most likely among them."""
    prompt = list(range(0, VOCABULARY, 3))
    return TurnJob(prompt, lambda: Sequence(BlockTable(256)), Decoding(50, sampling=sampling), print, threading.Event())


def logits_of(rows: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(0, 3, (rows, VOCABULARY)).astype(np.float32))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_rows_together_are_as_each_alone(dtype: mx.Dtype) -> None:
    jobs, alone = ([job_of(kind) for kind in KINDS] for _ in range(2))
    for step in range(12):
        logits = logits_of(len(jobs), step).astype(dtype)
        together: list[int] = next_tokens(logits, jobs).tolist()  # type: ignore[assignment]
        for row, (job, other) in enumerate(zip(jobs, alone, strict=True)):
            token: int = next_tokens(logits[row : row + 1], [other])[0].item()  # type: ignore[assignment]
            assert together[row] == token, KINDS[row]
            for each in (job, other):
                each.result.token_ids.append(token)


NONE = Filters(temperature=1.0, top_p=1.0, min_p=0.0, top_k=0)


def test_tokens_are_drawn_with_their_probabilities() -> None:
    """The chi-squared statistic over five tokens with 4 degrees of freedom stays below that of one in a million."""
    wanted, draws = np.array([0.5, 0.25, 0.15, 0.07, 0.03]), 20_000
    logprobs = mx.broadcast_to(mx.array(np.log(wanted)), (draws, 5))
    keys = [mixed(number) for number in range(draws)]
    for by, expected in (
        (NONE, wanted),
        (NONE._replace(top_k=3), wanted * [1, 1, 1, 0, 0] / 0.9),
        (NONE._replace(temperature=0.5), wanted**2 / (wanted**2).sum()),
    ):
        counts = np.bincount(np.array(sampled(logprobs, by, keys)), minlength=5)
        some = expected > 0
        assert counts[~some].sum() == 0
        assert ((counts - draws * expected)[some] ** 2 / (draws * expected[some])).sum() < 33.4


def test_a_sampler_that_was_rewound_draws_the_same_again() -> None:
    sampler = TokenSampler(Sampling(temperature=1.0, seed=11))
    keys = [sampler.next_key() for _ in range(6)]
    sampler.rewind([5, 6])
    assert [sampler.next_key() for _ in range(4)] == keys[2:]
    assert len({*keys, TokenSampler(Sampling(temperature=1.0, seed=12)).next_key()}) == 7, "another seed's are others"


def test_biases_are_added() -> None:
    jobs = [job_of(Sampling(logit_bias={1: 0.5, 2: 1.5})), job_of(Sampling()), job_of(Sampling(logit_bias={2: -1.0}))]
    found = choosing.biased(mx.zeros((3, 4)), jobs)
    assert found.tolist() == [[0, 0.5, 1.5, 0], [0, 0, 0, 0], [0, 0, -1.0, 0]]


@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logprobs = choosing.logprobs(logits_of(5))
    found = sampled(logprobs, NONE._replace(temperature=temperature), [mixed(number) for number in range(5)])
    assert mx.array_equal(found, mx.argmax(logprobs, axis=-1))


def test_presence_and_frequency_count_only_what_was_generated() -> None:
    tokens, logits = mx.array([1, 1, 1, 2]), mx.zeros((1, 4))
    for sampling in (Sampling(frequency_penalty=2.0), Sampling(presence_penalty=2.0)):
        [penalty] = penalties(sampling, 3)
        assert penalty(tokens, logits).tolist() == [[0, 0, -2.0, 0]]
