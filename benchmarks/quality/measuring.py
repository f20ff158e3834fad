"""One network over the same tokens with several kinds of KV side by side, and how far each is from unquantized KV.

Tokens go through the caches in chunks, so that every token is quantized before the next chunk reads it, as in service.
Of each chunk logits are compared at once and forgotten. One thread.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self

import mlx.core as mx
import numpy as np

from benchmarks.quality.chats import Chat
from benchmarks.quality.spread import counted
from benchmarks.quality.variants import NewCaches

BASE = "unquantized"


EDGES: Final = (1024, 4096, 8192, 16384)
"""Positions in the context at which figures are parted."""


Step = Callable[[Sequence[int]], mx.array]
"""Reads on by some tokens; returns log-probabilities of the next token after each."""


class Sums(NamedTuple):
    """Sums over tokens of a piece that something predicts, in one part of the context.

    Negative log-probability of the right tokens and KL divergence from unquantized KV, both in nats; how often the
    first choice is the same; and how many tokens have a KL of which size (`spread`).
    """

    tokens: int
    loss: float
    divergence: float
    same: int
    spread: dict[int, int]

    def plus(self, other: Self) -> Self:
        spread = Counter(self.spread)
        spread.update(other.spread)
        return type(self)(
            self.tokens + other.tokens,
            self.loss + other.loss,
            self.divergence + other.divergence,
            self.same + other.same,
            dict(sorted(spread.items())),
        )


def part(position: int) -> int:
    return bisect_right(EDGES, position)


class Answer(NamedTuple):
    """An answer is right where the first choice was right at every token; the log-probability is their mean."""

    right: bool
    logprob: float


def read(
    network: Any, token_ids: Sequence[int], variants: Mapping[str, NewCaches], chunk: int
) -> tuple[dict[str, dict[int, Sums]], dict[str, list[Any]]]:
    """Read a piece from an empty context. Return sums by name, `BASE` first, and part of the context; and the
    caches.
    """
    caches = _all_caches(network, variants)

    def step(own: list[Any]) -> Step:
        return lambda token_ids: _logprobs(network, mx.array([list(token_ids)]), own)

    return compared(token_ids, {name: step(own) for name, own in caches.items()}, chunk), caches


def compared(token_ids: Sequence[int], steps: Mapping[str, Step], chunk: int) -> dict[str, dict[int, Sums]]:
    """Read a piece by every step in the same chunks. Return sums by name and part of the context. The first is the
    base.
    """
    found: dict[str, dict[int, Sums]] = {name: {} for name in steps}
    last = len(token_ids) - 1
    ends = sorted({*range(chunk, last, chunk), *(edge for edge in EDGES if edge < last), last})
    for start, end in pairwise([0, *ends]):
        wanted = mx.array(list(token_ids[start + 1 : end + 1]))
        base: mx.array | None = None
        for name, step in steps.items():
            logprobs = step(token_ids[start:end])
            base = logprobs if base is None else base
            new, parts = _compared(base, logprobs, wanted), found[name]
            parts[part(start)] = parts[part(start)].plus(new) if part(start) in parts else new
        mx.clear_cache()
    return found


def answers(network: Any, chat: Chat, variants: Mapping[str, NewCaches], chunk: int) -> dict[str, list[Answer]]:
    """Return the answers to a chat's questions, in order, by name, `BASE` first."""
    first = chat.values[0].start - 1
    found = {}
    for name, caches in _all_caches(network, variants).items():
        for start in range(0, first, chunk):
            _logprobs(network, mx.array([chat.token_ids[start : min(start + chunk, first)]]), caches, last=1)
        right, logprobs = _told(network, chat.token_ids[first:], caches, chunk)
        places = [slice(value.start - first - 1, value.stop - first - 1) for value in chat.values]
        found[name] = [Answer(bool(right[place].all()), float(logprobs[place].mean())) for place in places]
        mx.clear_cache()
    return found


def _told(network: Any, token_ids: Sequence[int], caches: list[Any], chunk: int) -> tuple[Any, Any]:
    """Read tokens [n]. Return NumPy arrays [n - 1]: is the next token the first choice, and its log-probability."""
    right, told = [], []
    last = len(token_ids) - 1
    for start in range(0, last, chunk):
        end = min(start + chunk, last)
        logprobs = _logprobs(network, mx.array([list(token_ids[start:end])]), caches)
        wanted = mx.array(list(token_ids[start + 1 : end + 1]))
        right.append(np.array(logprobs.argmax(axis=-1) == wanted))
        told.append(np.array(mx.take_along_axis(logprobs, wanted[:, None], axis=-1))[:, 0])
    return np.concatenate(right), np.concatenate(told)


def _all_caches(network: Any, variants: Mapping[str, NewCaches]) -> dict[str, list[Any]]:
    return {BASE: network.own_caches(), **{name: new() for name, new in variants.items()}}


def _logprobs(network: Any, inputs: mx.array, caches: list[Any], last: int | None = None) -> mx.array:
    """Return log-probabilities of the next token after each of inputs [1, n], or the last: float32 [n, vocabulary]."""
    return normalized(network(inputs, cache=caches)[0][-last if last else 0 :].astype(mx.float32))


def normalized(logits: mx.array) -> mx.array:
    """Return the log-probabilities of logits [n, vocabulary], evaluated."""
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    mx.eval(logprobs)
    return logprobs


def _compared(base: mx.array, logprobs: mx.array, wanted: mx.array) -> Sums:
    loss: float = -mx.take_along_axis(logprobs, wanted[:, None], axis=-1).sum().item()  # type: ignore[assignment]
    if base is logprobs:
        return Sums(wanted.size, loss, 0.0, wanted.size, {})
    divergences = np.array((mx.exp(base) * (base - logprobs)).sum(axis=-1))
    same: int = (base.argmax(axis=-1) == logprobs.argmax(axis=-1)).sum().item()  # type: ignore[assignment]
    return Sums(wanted.size, loss, float(divergences.sum()), same, counted(divergences))
