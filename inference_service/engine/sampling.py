"""Sampling of a turn's next token. Engine thread.

A random key is made of the seed and the number of draws, so that a request repeats whatever else runs. A grammar's mask
is applied last: log-probabilities stay the model's.
"""

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from agentmem.errors import AgentmemError
from inference_service.domain import Sampling
from inference_service.text.grammar import Grammar

Processor = Callable[[mx.array, mx.array], mx.array]
"""(tokens [n], logits [1, vocabulary]) to logits."""

_WHOLE_HISTORY = 1 << 30
_WORD = (1 << 64) - 1
_BLOCK = 128


class Filters(NamedTuple):
    temperature: float
    top_p: float
    min_p: float
    top_k: int


class Biases(NamedTuple):
    """Tokens, int32 [n], and values for their logits, float32."""

    tokens: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


class TokenSampler:
    """Log-probabilities [1, vocabulary] to ids [1], lazily."""

    def __init__(self, sampling: Sampling, top_logprobs: int | None = None) -> None:
        self.filters = Filters(sampling.temperature, sampling.top_p, sampling.min_p, sampling.top_k)
        self.biases = Biases(
            np.fromiter(sampling.logit_bias.keys(), np.int32), np.fromiter(sampling.logit_bias.values(), np.float32)
        )
        self._top_logprobs = top_logprobs
        self._computed: deque[tuple[mx.array, ...]] = deque()
        self._seed = mixed(secrets.randbits(64) if sampling.seed is None else sampling.seed)
        self._drawn = 0

    @property
    def by_rows(self) -> bool:
        return self._top_logprobs is not None

    @property
    def greedy(self) -> bool:
        return self.filters.temperature == 0 and not self.by_rows

    def rewind(self, token_ids: Sequence[int]) -> None:
        """Tokens sampled ahead do not count."""
        self._computed.clear()
        self._drawn = len(token_ids)

    def next_key(self) -> int:
        """64 bits."""
        self._drawn += 1
        return mixed(self._seed + self._drawn)

    def return_keys(self, count: int) -> None:
        self._drawn -= count

    def check(self, index: int) -> None:
        """Raise the error that made the sampled token of this index meaningless. There is none here."""

    def next_logprobs(self) -> tuple[float | None, tuple[tuple[int, float], ...]]:
        if self._top_logprobs is None:
            return None, ()
        own, *top = self._computed.popleft()
        ids, values = (each.tolist() for each in top) if top else ([], [])
        return own.item(), tuple(zip(ids, values, strict=True))  # type: ignore[arg-type, return-value]

    def __call__(self, logprobs: mx.array) -> mx.array:
        token = self._choose(logprobs)
        if self._top_logprobs is not None:
            own = logprobs[0, token[0]].astype(mx.float32)
            computed = (own, *(likeliest(logprobs[0], self._top_logprobs) if self._top_logprobs else ()))
            # With this step: reading them waits for no other.
            mx.async_eval(token, *computed)  # type: ignore[no-untyped-call]
            self._computed.append(computed)
        return token

    def _choose(self, logprobs: mx.array) -> mx.array:
        return sampled(logprobs, self.filters, [self.next_key()] if self.filters.temperature else [])


def sampled(logprobs: mx.array, filters: Filters, keys: Sequence[int]) -> mx.array:
    if filters.temperature == 0:
        return mx.argmax(logprobs, axis=-1)
    logprobs = logprobs.astype(mx.float32)
    if 0 < filters.top_p < 1:
        logprobs = apply_top_p(logprobs, filters.top_p)
    if filters.min_p > 0:
        logprobs = apply_min_p(logprobs, filters.min_p)
    vocabulary = logprobs.shape[-1]
    if 0 < filters.top_k < vocabulary:
        logprobs = apply_top_k(logprobs, filters.top_k)
    words = mx.array(np.array([divmod(key, 1 << 32) for key in keys], np.uint32))
    noise = mx.vmap(lambda key: mx.random.gumbel((vocabulary,), key=key))(words)
    # From the maximum down: a tiny temperature leaves the most likely token.
    return mx.argmax((logprobs - logprobs.max(axis=-1, keepdims=True)) / filters.temperature + noise, axis=-1)


def mixed(number: int) -> int:
    """Return the output of SplitMix64 (Steele, Lea and Flood, 2014)."""
    number = (number * 0x9E3779B97F4A7C15) & _WORD
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _WORD
    return number ^ (number >> 31)


def penalties(sampling: Sampling, prompt_tokens: int) -> list[Processor]:
    """Presence and frequency count tokens from `prompt_tokens` on."""
    penalty = sampling.repetition_penalty
    whole = make_logits_processors(
        repetition_penalty=penalty if penalty != 1.0 else None,
        repetition_context_size=_WHOLE_HISTORY,
    )
    generated = make_logits_processors(
        presence_penalty=sampling.presence_penalty,
        presence_context_size=_WHOLE_HISTORY,
        frequency_penalty=sampling.frequency_penalty,
        frequency_context_size=_WHOLE_HISTORY,
    )
    return [*whole, *(lambda tokens, logits, by=each: by(tokens[prompt_tokens:], logits) for each in generated)]


def likeliest(logprobs: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Return ids, int32, and log-probabilities, float32; of equals the lowest id first. A stable sort takes a CPU 12 ms
    for 128K tokens, this 0.3.
    """
    vocabulary = logprobs.shape[-1]
    blocks = mx.pad(logprobs, (0, -vocabulary % _BLOCK), constant_values=-mx.inf).reshape(-1, _BLOCK)
    wanted = mx.sort(mx.argsort(-blocks.max(axis=-1))[:count])
    ids = (wanted[:, None] * _BLOCK + mx.arange(_BLOCK)).reshape(-1)
    values = blocks[wanted].reshape(-1)
    first = mx.argsort(-values)[: min(count, vocabulary)]
    return ids[first], values[first].astype(mx.float32)


_LEAST = -1e30


class ConstrainedSampler(TokenSampler):
    """A step that raises would cost every row: `check` reports a failure."""

    def __init__(self, sampling: Sampling, grammar: Grammar, top_logprobs: int | None = None) -> None:
        super().__init__(sampling, top_logprobs)
        self._grammar = grammar
        self._last: mx.array | None = None
        self._failure: AgentmemError | None = None

    @property
    def by_rows(self) -> bool:
        return True

    def rewind(self, token_ids: Sequence[int]) -> None:
        super().rewind(token_ids)
        self._last = self._failure = None
        try:
            self._grammar.restart(token_ids)
        except AgentmemError as error:
            self._failure = error

    def check(self, index: int) -> None:
        if self._failure is not None and index >= self._grammar.tokens:
            raise self._failure

    def _choose(self, logprobs: mx.array) -> mx.array:
        mx.async_eval(logprobs)  # type: ignore[no-untyped-call]
        allowed = self._allowed()
        if allowed is None:
            return super()._choose(logprobs)
        # Biased tokens stay possible where nothing else is.
        held = mx.where(allowed, mx.maximum(logprobs.astype(mx.float32), _LEAST), -mx.inf)
        self._last = super()._choose(held - mx.logsumexp(held, axis=-1, keepdims=True))
        return self._last

    def _allowed(self) -> mx.array | None:
        if self._failure is not None or self._grammar.ended:
            return None
        try:
            if self._last is not None:
                self._grammar.advance(int(self._last.item()))  # type: ignore[arg-type]
            return None if self._grammar.ended else mx.array(self._grammar.allowed())
        except AgentmemError as error:
            self._failure = error
            return None
