"""Several tokens of a row in one step, where its next tokens are guessed from those it has, and where that pays.

A decode step reads all weights for one token, and takes little longer for a few. So a draft (`engine.drafting`) is
computed together with the last token, and its tokens are kept as far as they are what is sampled from the step's
logits (`mlx_lm_adapter.several_steps`): greedy tokens one by one, sampled ones in distribution. As in a batch, these
logits are rounded otherwise than those of a token alone, so that a near tie may fall otherwise; a request with a seed,
which asks for the same answer again, is not drafted for (`engine.batching`).

How much longer a step of several tokens takes differs. Of SmolLM2-135M in float32 on two cores, in steps of one token:

    tokens of context       2 tokens        4        8       16       32
    60                          1.25     1.42     1.52     1.82     2.63
    1,000                       1.30     1.62     1.81     2.35     3.47
    3,500                       1.30     1.56     2.24     3.09     4.75

It is measured, by the steps themselves.

Only a row that decodes by itself speculates: rows of a batch would have to be trimmed by different numbers of tokens. A
batch has less to gain, too, since its rows share the reading of the weights already.
"""

import time
from collections import deque
from collections.abc import Collection, Sequence
from statistics import median
from typing import Final, NamedTuple

from inference_service.engine.caches.buffers import BatchCache
from inference_service.engine.drafting import Drafter
from inference_service.engine.mlx_lm_adapter import GenerationBatch, sampled_ahead, several_steps

_KEPT: Final = 7
"""Steps of each number of tokens whose times are kept."""
_TRUSTED: Final = 3
"""Times of a number of tokens that say what it takes."""
_FORGOTTEN: Final = 8192
"""Steps of one token after which all others are measured again: what was too dear may not be any more."""


class StepCosts:
    """What a model's steps of several tokens take, in steps of one. Engine thread only."""

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=_KEPT)
        self._several: dict[int, deque[float]] = {}
        self._steps = 0

    def took(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long. The first one of several counts for nothing: it may compile."""
        if tokens == 1:
            self._plain.append(seconds)
            self._steps += 1
            if self._steps % _FORGOTTEN == 0:
                self._several.clear()
        elif (times := self._several.get(tokens)) is None:
            self._several[tokens] = deque(maxlen=_KEPT)
        elif self._plain:
            times.append(seconds / median(self._plain))

    def of(self, tokens: int) -> float:
        """Steps of one token that one of so many takes; until that is known, a little more than one."""
        times = self._several.get(tokens, ())
        return max(1.0, median(times)) if len(times) >= _TRUSTED else 1 + tokens / 16


class Speculated(NamedTuple):
    """What came of a step: its tokens, the ones of a draft that it computed, and how many of these were right."""

    tokens: list[int]
    drafted: int
    accepted: int


class Speculation:
    """One row that decodes by itself. Engine thread only."""

    def __init__(self, tokens: Sequence[int], *, ahead: bool) -> None:
        """Of a row with these tokens; `ahead` if the last one of them is what its batch has sampled ahead."""
        self._drafter = Drafter(tokens)
        self._ahead = ahead

    def step(
        self, row: GenerationBatch, most: int, ends: Collection[int], costs: StepCosts, *, measure: bool
    ) -> Speculated:
        """One step of the row, of the token that it has sampled ahead and a draft of at most `most`, none of `ends`.

        With `measure` its time counts: nothing else is computed meanwhile. Raises what the model raises.
        """
        if not self._ahead and self._drafter.draft(most, ends, costs.of):
            self._drafter.add(sampled_ahead(row))
            self._ahead = True
        goes_on = self._ahead and sampled_ahead(row) not in ends
        draft = self._drafter.draft(most, ends, costs.of) if goes_on else []
        began = time.perf_counter()
        if draft:
            tokens = several_steps(row, draft)
            if measure:
                costs.took(1 + len(draft), time.perf_counter() - began)
            for token in (*tokens[1:], sampled_ahead(row)):
                self._drafter.add(token)
            return Speculated(tokens, len(draft), len(tokens) - 1)
        [response] = row.next()
        if not self._ahead:  # Else the token was known already, and was not waited for.
            self._drafter.add(response.token)
            if measure:
                costs.took(1, time.perf_counter() - began)
        self._ahead = False
        return Speculated([response.token], 0, 0)


def can_speculate(row: GenerationBatch) -> bool:
    """Whether all its caches can be trimmed: recurrent states cannot."""
    return len(row.uids) == 1 and all(isinstance(cache, BatchCache) for cache in row.prompt_cache)
