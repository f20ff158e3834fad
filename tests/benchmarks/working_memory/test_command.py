"""The working memory benchmark: what it counts as wrong, and what it is asked to run."""

from dataclasses import replace

import pytest

from benchmarks.working_memory.command import Comparison
from benchmarks.working_memory.scores import Performance, Work


def comparison() -> tuple[Comparison, Performance]:
    compared = Comparison({5: 60}, 3)
    works = [Work("turn", q.phase, q.agent, q.expected, 300, 290, 8, 0.1) for q in compared.scenarios[5].questions]
    return compared, Performance(works, 1.0)


def forgetting(performance: Performance) -> Performance:
    return Performance([replace(performance.works[0], text="All right."), *performance.works[1:]], 1.0)


@pytest.mark.parametrize("way", ["persistent", "killed", "pool of 4"])
def test_memory_must_recall_all(way: str) -> None:
    compared, right = comparison()
    compared.add(5, "persistent", right)
    assert compared.mistakes() == []
    compared.add(5, way, forgetting(right))
    (mistake,) = compared.mistakes()
    assert mistake.startswith(f"5 agents, {way}: miss")
    assert compared.scores["5"][way]["differing_texts"] == 1


def test_without_memory_only_leaks_are_mistakes() -> None:
    compared, right = comparison()
    compared.add(5, "persistent", right)
    compared.add(5, "no memory", forgetting(right))
    assert compared.mistakes() == []
    scenario = compared.scenarios[5]
    question = next(each for each in scenario.questions if each.how == "withheld")
    secret = next(fact for fact in scenario.facts if fact.entity == question.entity)
    told = Work("note", question.phase, question.agent, secret.answer, 1, 0, 1, 0.1)
    compared.add(5, "no memory", Performance([*right.works, told], 1.0))
    (mistake,) = compared.mistakes()
    assert "no memory: leak" in mistake


def test_the_small_pool_holds_four_of_the_longest_ledgers() -> None:
    compared, right = comparison()
    compared.add(5, "persistent", right)
    assert compared.small_pool(5, 10) == 4 * 2 * 256 * 10
    assert compared.crowded == [5]
