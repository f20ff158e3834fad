"""Choosing the next token: penalties, filters, and a random key per request.

Filters and penalties are mlx-lm's, and have the shape that its GenerationBatch wants. The random key is the request's
own, so that a seeded request gives the same tokens whatever else runs.
"""

import secrets
from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from inference_service.domain import Sampling

Processor = Callable[[mx.array, mx.array], mx.array]
"""(tokens so far [n], logits [1, vocabulary]) to logits."""

_WHOLE_HISTORY = 1 << 30


class TokenSampler:
    """Samples one turn's tokens: log-probabilities [1, vocabulary] to ids [1], lazily."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._first_key = mx.random.key(secrets.randbits(63) if sampling.seed is None else sampling.seed)
        self._key = self._first_key

    def rewind(self, token_ids: Sequence[int]) -> None:
        """Go on as after these tokens: what was sampled ahead and thrown away does not count."""
        self._key = self._first_key
        for _ in token_ids if self._sampling.temperature else ():
            self._key, _ = mx.random.split(self._key)

    def check(self, index: int) -> None:
        """Raise what made the sampled token of this index, from 0, meaningless. Nothing does here."""

    def __call__(self, logprobs: mx.array) -> mx.array:
        s = self._sampling
        if s.temperature == 0:
            return mx.argmax(logprobs, axis=-1)
        logprobs = logprobs.astype(mx.float32)
        if 0 < s.top_p < 1:
            logprobs = apply_top_p(logprobs, s.top_p)
        if s.min_p > 0:
            logprobs = apply_min_p(logprobs, s.min_p)
        if 0 < s.top_k < logprobs.shape[-1]:
            logprobs = apply_top_k(logprobs, s.top_k)
        self._key, now = mx.random.split(self._key)
        # From the maximum down, so that a tiny temperature leaves the most likely token and not nothing.
        return mx.random.categorical((logprobs - logprobs.max(axis=-1, keepdims=True)) / s.temperature, key=now)


def processors(sampling: Sampling, prompt_tokens: int) -> list[Processor]:
    """What changes the logits before sampling.

    The repetition penalty counts the whole history; presence and frequency count only what was generated, which in the
    history begins at `prompt_tokens`.
    """
    penalty = sampling.repetition_penalty
    whole = make_logits_processors(
        logit_bias=dict(sampling.logit_bias) or None,
        repetition_penalty=penalty if penalty != 1.0 else None,
        repetition_context_size=_WHOLE_HISTORY,
    )
    generated = make_logits_processors(
        presence_penalty=sampling.presence_penalty,
        presence_context_size=_WHOLE_HISTORY,
        frequency_penalty=sampling.frequency_penalty,
        frequency_context_size=_WHOLE_HISTORY,
    )
    return [*whole, *(partial(_of_generated, process, prompt_tokens) for process in generated)]


def _of_generated(process: Processor, prompt_tokens: int, tokens: mx.array, logits: mx.array) -> mx.array:
    return process(tokens[prompt_tokens:], logits)


def top_logprobs(logprobs: mx.array, token_id: int, count: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """A token's log-probability in [vocabulary], and the `count` most likely tokens, most likely first."""
    if not count:
        return float(logprobs[token_id]), ()
    order = mx.argsort(-logprobs)[:count]
    values: list[float] = logprobs[order].astype(mx.float32).tolist()  # type: ignore[assignment]
    ids: list[int] = order.tolist()  # type: ignore[assignment]
    return float(logprobs[token_id]), tuple(zip(ids, values, strict=True))
