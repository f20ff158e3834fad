"""Several tokens of a turn in one step, where drafts pay.

Drafts are kept as far as they equal what is sampled. Logits are rounded differently, so a request with a seed is not
drafted for. Costs are measured; of SmolLM2-135M on two cores, in plain steps:

    tokens of context       2 tokens        4        8       16       32
    60                          1.25     1.42     1.52     1.82     2.63
    3,500                       1.30     1.56     2.24     3.09     4.75
"""

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import median
from typing import Final, cast

import mlx.core as mx

from inference_service.engine.choosing import biased, logprobs, next_tokens, penalized
from inference_service.engine.device import on_cpu
from inference_service.engine.drafting import Drafter, Guess, chosen
from inference_service.engine.generation import TurnJob
from inference_service.engine.paged.sequence import SLACK
from inference_service.text.tokenizer import Tokenizer

_MOST_TURNS: Final = 4
_MOST_TURNS_ON_CPU: Final = 8
"""More share the reading of weights well enough."""
_KEPT: Final = 7
_TRUSTED: Final = 3
_FORGOTTEN: Final = 8192
_BEHIND: Final = 64
"""Missed tokens from which a new drafter is cheaper."""


class StepCosts:
    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=_KEPT)
        self._drafted: dict[int, deque[float]] = {}
        self._steps = 0

    def took(self, drafted: int, seconds: float) -> None:
        """The first of each number may compile: it does not count."""
        if not drafted:
            self._plain.append(seconds)
            self._steps += 1
            if self._steps % _FORGOTTEN == 0:
                self._drafted.clear()
        elif (times := self._drafted.get(drafted)) is None:
            self._drafted[drafted] = deque(maxlen=_KEPT)
        elif self._plain:
            times.append(seconds / median(self._plain))

    def of(self, drafted: int) -> float:
        """Until it is known, 1 and 1/16 for each token."""
        times = self._drafted.get(drafted, ())
        return max(1.0, median(times)) if len(times) >= _TRUSTED else 1 + (drafted + 1) / 16


class Speculation:
    """Engine thread only."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.most_turns = _MOST_TURNS_ON_CPU if on_cpu() else _MOST_TURNS
        self._tokenizer = tokenizer
        self._costs: defaultdict[tuple[int, int], StepCosts] = defaultdict(StepCosts)
        """By turns, and tokens of context in powers of 4."""
        self._since, self._turns = 0.0, 0

    def costs(self, jobs: Sequence[TurnJob]) -> StepCosts:
        return self._costs[len(jobs), sum(job.tokens for job in jobs).bit_length() // 2]

    def drafts(self, jobs: Sequence[TurnJob]) -> list[list[int]]:
        """Return each turn's draft; empty if plain steps promise as much."""
        guesses = [self._guesses(job) for job in jobs]
        return chosen(guesses, self.costs(jobs).of) if any(guesses) else []

    def _guesses(self, job: TurnJob) -> list[Guess]:
        """None with a seed: rounding depends on times."""
        assert job.decoding is not None
        if job.decoding.sampling.seed is not None:
            return []
        if job.drafter is None or job.tokens - job.drafter.tokens > _BEHIND:
            job.drafter = Drafter(job.history)
        for token in job.between(job.drafter.tokens, job.tokens):
            job.drafter.add(token)
        left = job.decoding.max_tokens - len(job.result.token_ids) - 1
        return job.drafter.guesses(min(left, SLACK - 1), self._tokenizer.eos_ids)

    def ended(self, jobs: Sequence[TurnJob]) -> None:
        """None of `jobs` if anything but one pass was computed."""
        now = time.perf_counter()
        if jobs and self._turns == len(jobs):
            self.costs(jobs).took(0, now - self._since)
        self._since, self._turns = now, len(jobs)


def sampled_along(logits: mx.array, jobs: Sequence[TurnJob], drafts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return what plain steps would have sampled: the right prefix of each draft, and one more. `logits` [tokens,
    vocabulary].
    """
    owners = [job for job, draft in zip(jobs, drafts, strict=True) for _ in range(1 + len(draft))]
    free = [row for row, job in enumerate(owners) if not job.in_order]
    tokens: dict[int, int] = {}
    if free:
        rows = logits if len(free) == len(owners) else logits[mx.array(free)]
        drawn = next_tokens(rows, [owners[row] for row in free]).tolist()
        tokens = dict(zip(free, cast(list[int], drawn), strict=True))
    found, first = [], 0
    for job, draft in zip(jobs, drafts, strict=True):
        end = first + len(draft) + 1
        if job.in_order:
            found.append(_one_by_one(logits[first:end], job, draft))
        else:
            right = next((at for at, token in enumerate(draft) if tokens[first + at] != token), len(draft))
            found.append([tokens[row] for row in range(first, first + right + 1)])
            if not job.greedy:
                job.sampler.return_keys(len(draft) - right)
        first = end
    return found


def _one_by_one(logits: mx.array, job: TurnJob, draft: Sequence[int]) -> list[int]:
    logits = biased(logits, [job] * len(logits))
    history = list(job.history) if job.penalties else []
    found: list[int] = []
    for at in range(len(draft) + 1):
        own = penalized(logits[at : at + 1], job, mx.array([*history, *draft[:at]], dtype=mx.uint32))
        found.append(cast(int, job.sampler(logprobs(own)).item()))
        if at == len(draft) or found[-1] != draft[at]:
            break
    return found
