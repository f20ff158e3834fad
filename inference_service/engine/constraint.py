"""Sampling held to a grammar: a turn's own sampler lets through only what may come next.

The mask is put on in the sampler, and not by a logits processor, so that log-probabilities stay the model's. A grammar
needs the last token on the host, while the batch leaves it on the device until a step later: this sampler waits for it,
with the model's next step already under way. Turns without a grammar have none of this.
"""

from collections.abc import Sequence

import mlx.core as mx

from agentmem.errors import AgentmemError
from inference_service.domain import Sampling
from inference_service.engine.sampling import TokenSampler
from inference_service.text.grammar import Grammar

_LEAST = -1e30


class ConstrainedSampler(TokenSampler):
    """Samples what a grammar allows, and end-of-sequence where it is complete. Engine thread.

    Never raises for the grammar's sake, since a step that raises costs every row of its batch: a turn whose grammar
    cannot go on is told by `check`, and what is sampled for it after that means nothing.
    """

    def __init__(self, sampling: Sampling, grammar: Grammar) -> None:
        super().__init__(sampling)
        self._grammar = grammar
        self._last: mx.array | None = None
        self._failure: AgentmemError | None = None

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

    def __call__(self, logprobs: mx.array) -> mx.array:
        mx.async_eval(logprobs)  # type: ignore[no-untyped-call]
        allowed = self._allowed()
        if allowed is None:
            return super().__call__(logprobs)
        # What a bias has made impossible is possible still where nothing else is.
        held = mx.where(allowed, mx.maximum(logprobs.astype(mx.float32), _LEAST), -mx.inf)
        # Filters that count probability mass count what is left of it.
        self._last = super().__call__(held - mx.logsumexp(held, axis=-1, keepdims=True))
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


def sampler_for(sampling: Sampling, grammar: Grammar | None) -> TokenSampler:
    """A turn's sampler."""
    return TokenSampler(sampling) if grammar is None else ConstrainedSampler(sampling, grammar)
