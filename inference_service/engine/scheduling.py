"""Whose prompt is computed next. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

AGING_TOKENS = 64
"""Every tick of waiting counts as so many tokens less to do, so that a long prompt is not passed over for ever."""


class Waiting(NamedTuple):
    """A prompt that is not computed yet: tokens left, and ticks since its last chunk."""

    remaining_tokens: int
    waited_ticks: int


def next_prompt(waiting: Sequence[Waiting]) -> int:
    """The index of the prompt with the least left to do, aging counted; of equals the first. There must be one."""
    return min(range(len(waiting)), key=lambda i: waiting[i].remaining_tokens - AGING_TOKENS * waiting[i].waited_ticks)
