"""Rates and shared beginnings of answers with drafts and without."""

from __future__ import annotations

import pytest

from benchmarks.speculation import Worker, measure, rate
from benchmarks.speculation_requests import REPEATED, Request
from benchmarks.turns import Turn


def test_a_rate_is_of_tokens_after_all_have_begun() -> None:
    early, late = Turn(arrivals=[0.0, 1.0, 2.0, 3.0]), Turn(arrivals=[1.0, 2.0, 5.0])
    assert rate([early, late]) == pytest.approx(4 / 4)


class Scripted(Worker):
    """Answers the same tokens each time, and counts a draft of three with each answer."""

    def __init__(self, token_ids: list[int], step: float) -> None:
        self._turn = Turn(token_ids=token_ids, generated=8, arrivals=[step * at for at in range(8)])
        self._asked = 0

    async def answer(self, requests: object, tokens: int) -> list[Turn]:
        self._asked += 1
        return [self._turn]

    async def counts(self) -> dict[str, int]:
        return {"drafted": 3 * self._asked, "accepted": 2 * self._asked}


@pytest.mark.parametrize(("temperature", "same"), [(0.0, 4), (0.8, None)])
async def test_ratios_and_counts(temperature: float, same: int | None) -> None:
    plain, drafting = Scripted([1, 2, 3, 4, 5, 6, 7, 8], 0.2), Scripted([1, 2, 3, 4, 9, 6, 7, 8], 0.1)
    asked = [Request("code", REPEATED, "", temperature)]
    found = await measure({"plain": plain, "speculative": drafting}, asked, 8, 2)
    assert found["ratio"]["samples"] == pytest.approx([2.0, 2.0])
    assert (found["same_tokens"], found["drafted"], found["accepted"], found["steps"]) == (same, 3, 2, 6)
