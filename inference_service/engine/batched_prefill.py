"""Short prompts of several turns, computed in one batch, which then decodes.

A short chunk leaves most of a fast device idle: on an H100 Llama 3.1 8B computes 6,100 tokens/s in a chunk of 512, and
16,900 in one of 2,048. On a slow one the first of several prompts would wait for the others, and these gain little (two
cores, 8 prompts of 200 tokens: the last first token after 5.6 s instead of 6.1, the average after 4.4 instead of 2.8);
there only a batch of few tokens pays, because weights are read once for it (8 prompts of 30: 0.64 s instead of 1.79).

So prompts that wait together are computed together, from their first token on: right-aligned, padded on the left, as
the rows of a batch are that decodes. A token of padding sees the padding before it, because attention over nothing is
NaN on some backends; nothing else sees it.

Prompts that go on from KV are not taken: what they have ends where it ends, and cannot be padded in the middle. Nor are
those of models with checkpoints, which are kept in the middle of prompts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx

from inference_service.engine.cuda_kernel import available
from inference_service.engine.generation import TurnJob
from inference_service.engine.geometry import Caches, merged
from inference_service.engine.prefill import PrefillChunk
from inference_service.engine.scheduling import LARGEST_CHUNK, SMALLEST_CHUNK, SMALLEST_STEP

_LONGEST: Final = SMALLEST_STEP
"""Tokens of a prompt. Longer chunks attend by another path than the short ones of the proof at load, and fill a device
better alone."""
_MOST_ON_SLOW_DEVICES: Final = SMALLEST_CHUNK
"""Tokens of a batch, padding included, on a CPU, and on Metal, where it was not measured."""
_LEAST_FILLED: Final = 0.75
"""Of a batch: the rest is padding, which is computed for nothing."""


def batchable(job: TurnJob) -> bool:
    """Whether a turn that waits has a short prompt, of which nothing is computed or under way, and wants an answer."""
    fresh = not (job.started or job.reused or job.alone or job.cramped)
    return fresh and job.decoding is not None and 2 <= job.tokens <= _LONGEST


def companions(lengths: Sequence[int], first: int, most_tokens: int) -> list[int]:
    """Indices of the prompts that are computed with the one at `first`, itself included, in order.

    Those nearest in length come first; padding included, there are at most `most_tokens`, of which three quarters are
    no padding.
    """
    chosen = [first]
    for index in sorted(range(len(lengths)), key=lambda i: abs(lengths[i] - lengths[first])):
        with_it = [*chosen, index]
        padded = len(with_it) * max(lengths[i] for i in with_it)
        if index != first and padded <= most_tokens and sum(lengths[i] for i in with_it) >= _LEAST_FILLED * padded:
            chosen = with_it
    return sorted(chosen)


def most_tokens() -> int:
    """Of a batch of prompts, padding included: more gain little on this device."""
    return LARGEST_CHUNK if available() else _MOST_ON_SLOW_DEVICES


def padded_caches(lengths: Sequence[int], new_caches: Callable[[], Caches]) -> list[Any]:
    """Empty batch caches, per layer, of rows that will be of these lengths, once `padded_rows` are computed."""
    caches = merged(*(new_caches() for _ in lengths))
    for cache in caches:
        cache.padding = [max(lengths) - length for length in lengths]
    return caches


def padded_rows(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Tokens of rows of one length, right-aligned behind tokens 0."""
    longest = max(map(len, rows))
    return [[0] * (longest - len(row)) + list(row) for row in rows]


@dataclass(eq=False)
class PromptBatch:
    """The prompts of `jobs`, in one batch. Engine thread only."""

    jobs: list[TurnJob]
    caches: list[Any]
    """Batch caches, which hold all tokens once `advance` says so."""
    chunk: PrefillChunk
    """All tokens of each prompt but the last."""

    @classmethod
    def begun(
        cls, model: Any, jobs: Sequence[TurnJob], new_caches: Callable[[], Caches], speed: float
    ) -> "PromptBatch":
        """Nothing is computed yet. `speed` is tokens/s so far, as of `PrefillChunk`."""
        rows = [job.between(0, job.tokens - 1) for job in jobs]
        caches = padded_caches([len(row) for row in rows], new_caches)
        return cls(list(jobs), caches, PrefillChunk(model, caches, padded_rows(rows), 0, speed))

    def logits(self, model: Any) -> mx.array:
        """Feed the last token of each prompt; logits [rows, 1, vocabulary] behind it, lazily."""
        last = [job.between(job.tokens - 1, job.tokens) for job in self.jobs]
        logits: mx.array = model(mx.array(last), cache=self.caches)
        return logits

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only some of the jobs; at least one."""
        if len(rows) < len(self.jobs):
            self.jobs = [self.jobs[row] for row in rows]
            for cache in self.caches:
                cache.filter(rows)
