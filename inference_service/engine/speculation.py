"""Several tokens of a row in one step, where its next tokens are guessed from those it has, and where that pays.

A decode step reads all weights for one token, and takes little longer for a few. So a draft (`engine.drafting`) is
computed with the last token, and kept as far as it equals what is sampled from the pass's logits: greedy tokens one by
one, sampled ones in distribution. These logits are rounded differently from those of a token alone, so a near tie may
fall otherwise; a request with a seed, which asks for the same answer again, is not drafted for (`engine.batching`).

The cost of several tokens varies, so it is measured by the steps themselves. SmolLM2-135M in float32 on two cores, in
steps of one token:

    tokens of context       2 tokens        4        8       16       32
    60                          1.25     1.42     1.52     1.82     2.63
    1,000                       1.30     1.62     1.81     2.35     3.47
    3,500                       1.30     1.56     2.24     3.09     4.75

Only a sequence that decodes by itself speculates: others gain less, since they share the reading of the weights
already, and would wait for what was sampled last.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final, cast

import mlx.core as mx

from inference_service.engine.choosing import biased, logprobs, penalized
from inference_service.engine.generation import TurnJob

_KEPT: Final = 7
"""Times kept for each number of tokens."""
_TRUSTED: Final = 3
"""Times from which their median is used."""
_FORGOTTEN: Final = 8192
"""Steps of one token after which all others are measured again: a draft that did not pay may pay now."""


class StepCosts:
    """Costs of a model's steps of several tokens, in steps of one. Engine thread only."""

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=_KEPT)
        self._several: dict[int, deque[float]] = {}
        self._steps = 0

    def took(self, tokens: int, seconds: float) -> None:
        """Record the time of a step. The first one of each number of tokens above 1 is ignored: it may compile."""
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
        """Return the cost of a step of so many tokens, in steps of one; until it is known, a little more than one."""
        times = self._several.get(tokens, ())
        return max(1.0, median(times)) if len(times) >= _TRUSTED else 1 + tokens / 16


def sampled_along(logits: mx.array, job: TurnJob, draft: Sequence[int]) -> list[int]:
    """Return the tokens that plain steps would have sampled: the right prefix of the draft, and one more.

    `logits` [tokens, vocabulary] are those after the job's last token and each of the draft. Each token is sampled as
    its step would, by the row's own sampler and with penalties for the tokens before, and counts if all before it equal
    the draft. Given the logits that is exact: greedy tokens are those of plain steps, and sampled ones have their
    distribution.
    """
    logits = biased(logits, [job] * len(logits))
    if job.greedy:
        likeliest: list[int] = mx.argmax(logits, axis=-1).tolist()  # type: ignore[assignment]
        right = next((at for at, token in enumerate(draft) if likeliest[at] != token), len(draft))
        return likeliest[: right + 1]
    history = list(job.history) if job.penalties else []
    found: list[int] = []
    for at in range(len(draft) + 1):
        own = penalized(logits[at : at + 1], job, mx.array([*history, *draft[:at]], dtype=mx.uint32))
        found.append(cast(int, job.sampler(logprobs(own)).item()))
        if at == len(draft) or found[-1] != draft[at]:
            break
    return found
