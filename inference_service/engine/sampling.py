"""Choosing the next token: penalties, filters, and a random key per request.

Filters and penalties are mlx-lm's. The random key is the request's own, so that a seeded request gives the same tokens
whatever else runs.
"""

import secrets
from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from inference_service.domain import Sampling

_WHOLE_HISTORY = 1 << 30


class TokenSampler:
    """Samples one turn's tokens. `prompt` counts for the repetition penalty; the others see only what was generated."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self._sampling = sampling
        self._prompt = list(prompt)
        self._generated: list[int] = []
        self._key = mx.random.key(secrets.randbits(63) if sampling.seed is None else sampling.seed)
        penalty = sampling.repetition_penalty
        self._repetition = make_logits_processors(
            repetition_penalty=penalty if penalty != 1.0 else None, repetition_context_size=_WHOLE_HISTORY
        )
        self._penalties = make_logits_processors(
            logit_bias=dict(sampling.logit_bias) or None,
            presence_penalty=sampling.presence_penalty,
            presence_context_size=_WHOLE_HISTORY,
            frequency_penalty=sampling.frequency_penalty,
            frequency_context_size=_WHOLE_HISTORY,
        )

    def sample(self, logits: mx.array) -> int:
        """The next token, from logits [1, vocabulary]. It counts for the penalties of the following ones."""
        token_id: int = self._choose(logits).item()  # type: ignore[assignment]
        self._generated.append(token_id)
        return token_id

    def _choose(self, logits: mx.array) -> mx.array:
        logits = logits.astype(mx.float32)
        if self._repetition:
            history = mx.array(self._prompt + self._generated)
            logits = self._repetition[0](history, logits)
        for process in self._penalties:
            logits = process(mx.array(self._generated, dtype=mx.int32), logits)
        s = self._sampling
        if s.temperature == 0:
            return mx.argmax(logits, axis=-1)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if 0 < s.top_p < 1:
            logprobs = apply_top_p(logprobs, s.top_p)
        if s.min_p > 0:
            logprobs = apply_min_p(logprobs, s.min_p)
        if 0 < s.top_k < logits.shape[-1]:
            logprobs = apply_top_k(logprobs, s.top_k)
        self._key, now = mx.random.split(self._key)
        # From the maximum down, so that a tiny temperature leaves the most likely token and not nothing.
        return mx.random.categorical((logprobs - logprobs.max(axis=-1, keepdims=True)) / s.temperature, key=now)


def top_logprobs(logits: mx.array, token_id: int, count: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Log-probability of a token before any filter, and the `count` most likely ones, most likely first."""
    logprobs = (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).astype(mx.float32)[0]
    if not count:
        return float(logprobs[token_id]), ()
    order = mx.argsort(-logprobs)[:count]
    values: list[float] = logprobs[order].tolist()  # type: ignore[assignment]
    ids: list[int] = order.tolist()  # type: ignore[assignment]
    return float(logprobs[token_id]), tuple(zip(ids, values, strict=True))
