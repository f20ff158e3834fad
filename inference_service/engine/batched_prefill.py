"""Short prompts of several turns, computed in one batch, which then decodes.

A short chunk leaves most of a fast device idle: on an H100 Llama 3.1 8B computes 6,100 tokens/s in a chunk of 512, and
16,900 in one of 2,048. On a slow one the first of several prompts would wait for the others, and these gain little (two
cores, 8 prompts of 200 tokens: the last first token after 5.6 s instead of 6.1, the average after 4.4 instead of 2.8);
there only a batch of few tokens pays, because weights are read once for it (8 prompts of 30: 0.64 s instead of 1.79).

So prompts that wait together are computed together, right-aligned, padded on the left, as the rows of a batch are that
decodes. A token of padding sees the padding before it, because attention over nothing is NaN on some backends; nothing
else sees it. Prompts that go on from KV of other lengths end at the same place, too: who has fewer new tokens than
another computes the last ones of its KV again, because there can be no padding between KV and new tokens.

Those of models with checkpoints are not taken, because these are kept in the middle of prompts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import mlx.core as mx

from inference_service.engine.caches.lengths import trim_to
from inference_service.engine.cuda_kernel import available
from inference_service.engine.generation import TurnJob
from inference_service.engine.geometry import Caches, merged
from inference_service.engine.prefill import PrefillChunk
from inference_service.engine.scheduling import LARGEST_CHUNK, SMALLEST_CHUNK, SMALLEST_STEP

_LONGEST: Final = SMALLEST_STEP
"""New tokens of a prompt. Longer chunks attend by another path than the short ones of the proof at load, and fill a
device better alone."""
_MOST_ON_SLOW_DEVICES: Final = SMALLEST_CHUNK
"""Tokens of a batch, padding included, on a CPU, and on Metal, where it was not measured."""
_MOST_CONTEXT: Final = 32
"""Tokens of all rows, padding included, over the new ones that a batch may have: restoring and copying KV is no chunk
that could stop."""
_LEAST_FILLED: Final = 0.75
"""Of a batch: the rest is padding, which is computed for nothing."""


class Prompt(NamedTuple):
    """What is known of a prompt before it is begun, in tokens: `context` of KV that it goes on from, and `new` ones."""

    context: int
    new: int

    @property
    def tokens(self) -> int:
        """All of it."""
        return self.context + self.new


def batchable(job: TurnJob) -> bool:
    """Whether a turn that waits has few tokens to compute, of which none is computed or under way, and wants an answer.

    One token alone is left to a step of its own.
    """
    fresh = not (job.started or job.alone or job.cramped)
    return fresh and job.decoding is not None and 2 <= job.remaining <= _LONGEST


def companions(prompts: Sequence[Prompt], first: int, most_tokens: int) -> list[int]:
    """Indices of the prompts that are computed with the one at `first`, itself included, in order.

    Those nearest in new tokens come first; padding and what is computed again included, there are at most `most_tokens`
    new ones, of which three quarters are that, as of the contexts with them. All go on from KV, or none does.
    """
    chosen = [first]
    for index in sorted(range(len(prompts)), key=lambda i: abs(prompts[i].new - prompts[first].new)):
        if index != first and _together([prompts[i] for i in (*chosen, index)], most_tokens):
            chosen.append(index)
    return sorted(chosen)


def _together(prompts: Sequence[Prompt], most_tokens: int) -> bool:
    new, longest = max(each.new for each in prompts), max(each.tokens for each in prompts)
    rows, least = len(prompts), _LEAST_FILLED * len(prompts)
    if rows * new > most_tokens or rows * longest > _MOST_CONTEXT * most_tokens:
        return False
    if sum(p.new for p in prompts) < least * new:
        return False
    if sum(p.tokens for p in prompts) < least * longest:
        return False
    return all(p.context and p.tokens > new for p in prompts) or not any(p.context for p in prompts)


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
    contexts: list[int]
    """Tokens of KV that each went on from."""
    caches: list[Any]
    """Batch caches, which hold all tokens once `advance` says so."""
    chunk: PrefillChunk
    """All tokens of each prompt but the last."""

    @classmethod
    def begun(
        cls, model: Any, jobs: Sequence[TurnJob], new_caches: Callable[[], Caches], speed: float
    ) -> "PromptBatch":
        """Of jobs that were started. Nothing is computed yet; the jobs' own caches are copied, and empty afterwards.

        `speed` is tokens/s so far, as of `PrefillChunk`.
        """
        contexts, ends = [job.position for job in jobs], [job.tokens - 1 for job in jobs]
        width = max(end - context for end, context in zip(ends, contexts, strict=True))
        starts = [end - width for end in ends] if all(contexts) else contexts
        rows = [job.between(start, end) for job, start, end in zip(jobs, starts, ends, strict=True)]
        if any(starts):
            for job, start in zip(jobs, starts, strict=True):
                trim_to(job.caches, start)
            caches = merged(*(job.caches for job in jobs))
        else:
            caches = padded_caches([len(row) for row in rows], new_caches)
        chunk = PrefillChunk(model, caches, padded_rows(rows), max(starts), speed)
        for job, context in zip(jobs, contexts, strict=True):
            job.caches.clear()
            job.reused = context
        return cls(list(jobs), contexts, caches, chunk)

    def logits(self, model: Any) -> mx.array:
        """Feed the last token of each prompt; logits [rows, 1, vocabulary] behind it, lazily."""
        last = [job.between(job.tokens - 1, job.tokens) for job in self.jobs]
        logits: mx.array = model(mx.array(last), cache=self.caches)
        return logits

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only some of the jobs; at least one."""
        if len(rows) < len(self.jobs):
            self.jobs = [self.jobs[row] for row in rows]
            self.contexts = [self.contexts[row] for row in rows]
            for cache in self.caches:
                cache.filter(rows)
