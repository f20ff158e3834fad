"""Choosing the next token: penalties, filters, grammars, and a random key per request. Engine thread.

Filters and penalties are mlx-lm's, and have the shape that its GenerationBatch expects. The random key is the request's
own, so that a seeded request gives the same tokens whatever else runs.

A grammar's mask is applied in the sampler, and not by a logits processor, so that log-probabilities stay the model's. A
grammar needs the last token on the host, while the batch leaves it on the device until a step later: a constrained
sampler waits for it, with the model's next step already under way.
"""

import secrets
from collections import deque
from collections.abc import Callable, Sequence

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from agentmem.errors import AgentmemError
from inference_service.domain import Sampling
from inference_service.text.grammar import Grammar

Processor = Callable[[mx.array, mx.array], mx.array]
"""(tokens so far [n], logits [1, vocabulary]) to logits."""

_WHOLE_HISTORY = 1 << 30
_BLOCK = 128
"""Tokens whose maximum is taken at once: for 128K and 262K tokens the fastest of 32 to 512."""


class TokenSampler:
    """Samples one turn's tokens: log-probabilities [1, vocabulary] to ids [1], lazily.

    With `top_logprobs`, the log-probabilities of each token and of so many most likely ones are computed in the step
    that samples it, before filters and grammar; `next_logprobs` returns them when the token is on the host.
    """

    def __init__(self, sampling: Sampling, top_logprobs: int | None = None) -> None:
        self._sampling = sampling
        self._top_logprobs = top_logprobs
        self._computed: deque[tuple[mx.array, ...]] = deque()
        self._first_key = mx.random.key(secrets.randbits(63) if sampling.seed is None else sampling.seed)
        self._key = self._first_key

    @property
    def greedy(self) -> bool:
        """The likeliest token is taken, and nothing is reported of it."""
        return self._sampling.temperature == 0 and self._top_logprobs is None

    def rewind(self, token_ids: Sequence[int]) -> None:
        """Go on as after these tokens: what was sampled ahead and thrown away does not count."""
        self._computed.clear()
        self._key = self._first_key
        for _ in token_ids if self._sampling.temperature else ():
            self._key, _ = mx.random.split(self._key)

    def check(self, index: int) -> None:
        """Raise what made the sampled token of this index, from 0, meaningless. Nothing does here."""

    def next_logprobs(self) -> tuple[float | None, tuple[tuple[int, float], ...]]:
        """The log-probability of the next sampled token, in the order of the steps, and the most likely tokens'."""
        if self._top_logprobs is None:
            return None, ()
        own, *top = self._computed.popleft()
        ids, values = (each.tolist() for each in top) if top else ([], [])
        return own.item(), tuple(zip(ids, values, strict=True))  # type: ignore[arg-type, return-value]

    def __call__(self, logprobs: mx.array) -> mx.array:
        """The next token's id, int32 [1], lazily. mlx-lm calls it once for each step of the row, in order."""
        token = self._choose(logprobs)
        if self._top_logprobs is not None:
            own = logprobs[0, token[0]].astype(mx.float32)
            computed = (own, *(likeliest(logprobs[0], self._top_logprobs) if self._top_logprobs else ()))
            # With this step, in front of the next one's work: to read them then waits for nothing.
            mx.async_eval(token, *computed)  # type: ignore[no-untyped-call]
            self._computed.append(computed)
        return token

    def _choose(self, logprobs: mx.array) -> mx.array:
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
    return [*whole, *(lambda tokens, logits, by=each: by(tokens[prompt_tokens:], logits) for each in generated)]


def likeliest(logprobs: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """The `count` most likely tokens of log-probabilities [vocabulary], most likely first, lazily.

    Returns their ids, int32 [count], and log-probabilities, float32 [count]. Of equals the lowest id comes first, as in
    a stable sort of the whole vocabulary. That takes 12 ms for 128K tokens on a CPU, and this 0.3: whatever is among
    the first `count` lies in one of the `count` blocks whose maxima come first.
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
    """Samples what a grammar allows, and end-of-sequence where it is complete. Engine thread.

    Never raises for the grammar's sake, since a step that raises costs every row of its batch: a turn whose grammar
    cannot go on is reported by `check`, and what is sampled for it after that means nothing.
    """

    def __init__(self, sampling: Sampling, grammar: Grammar, top_logprobs: int | None = None) -> None:
        super().__init__(sampling, top_logprobs)
        self._grammar = grammar
        self._last: mx.array | None = None
        self._failure: AgentmemError | None = None

    @property
    def greedy(self) -> bool:
        return False

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
        # What a bias has made impossible is possible still where nothing else is.
        held = mx.where(allowed, mx.maximum(logprobs.astype(mx.float32), _LEAST), -mx.inf)
        # Filters that count probability mass count what is left of it.
        self._last = super()._choose(held - mx.logsumexp(held, axis=-1, keepdims=True))
        return self._last

    def _allowed(self) -> mx.array | None:
        """[vocabulary]: what may come next; None where the turn is over already, and its next token thrown away."""
        if self._failure is not None or self._grammar.ended:
            return None
        try:
            if self._last is not None:
                self._grammar.advance(int(self._last.item()))  # type: ignore[arg-type]
            return None if self._grammar.ended else mx.array(self._grammar.allowed())
        except AgentmemError as error:
            self._failure = error
            return None
