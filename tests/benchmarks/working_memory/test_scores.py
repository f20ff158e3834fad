"""Scores of the working memory benchmark: what is injected is found, and nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.working_memory.scenarios import JUDGE, Question, Scenario, make_scenario
from benchmarks.working_memory.scores import Performance, Work, differing, leaks, misses, score

SCENARIO = make_scenario(5, 60, 3)


def answering(scenario: Scenario) -> Performance:
    works = [
        Work("turn", question.phase, question.agent, question.expected, 100, 90, 8, 0.1)
        for question in scenario.questions
    ]
    return Performance(works, 3.0)


def asked(how: str) -> tuple[int, Question]:
    return next(each for each in enumerate(SCENARIO.questions) if each[1].how == how)


def changed(place: int, text: str) -> Performance:
    performance = answering(SCENARIO)
    performance.works[place] = replace(performance.works[place], text=text)
    return performance


def test_what_is_right_has_no_miss_and_no_leak() -> None:
    found = score(SCENARIO, answering(SCENARIO))
    assert found["misses"] == found["leaks"] == []
    assert found["recall"]["asked"] == found["recall"]["right"] == 15
    assert found["never_told"]["asked"] == found["never_told"]["right"] == 10
    assert found["prefill_tokens"] == 250
    assert found["seconds"] == 3.0


@pytest.mark.parametrize("how", ["public", "private", "relay", "withheld", "never told"])
def test_a_miss_is_found_where_it_is(how: str) -> None:
    place, question = asked(how)
    performance = changed(place, question.expected[:-1])
    (miss,) = misses(SCENARIO, performance)
    assert (miss.phase, miss.agent, miss.how) == (question.phase, question.agent, how)
    found = score(SCENARIO, performance)
    row = found["recall" if question.known else "never_told"]
    assert row["right"] == row["asked"] - 1
    assert row["by"][how]["right"] == row["by"][how]["asked"] - 1


def test_no_answer_is_a_miss() -> None:
    performance = answering(SCENARIO)
    gone = performance.works.pop(4)
    (miss,) = misses(SCENARIO, performance)
    assert (miss.phase, miss.agent, miss.said) == (gone.phase, gone.agent, None)


def test_a_leak_is_found_in_an_answer() -> None:
    place, question = asked("withheld")
    secret = next(fact for fact in SCENARIO.facts if fact.entity == question.entity)
    (leak,) = leaks(SCENARIO, changed(place, secret.answer))
    assert (leak.agent, leak.value, leak.said) == (question.agent, secret.value, secret.answer)


@given(st.data())
def test_whatever_is_said_too_early_or_by_others_is_a_leak(data: st.DataObject) -> None:
    fact = data.draw(st.sampled_from(SCENARIO.facts))
    agent = data.draw(st.sampled_from((*SCENARIO.agents, JUDGE)))
    phase = data.draw(st.sampled_from(SCENARIO.phases))
    learned = SCENARIO.learned.get(agent, {}).get(fact)
    note = Work("note", phase, agent, f"I think that it is {fact.value.upper()}!", 1, 0, 1, 0.1)
    expected = agent != JUDGE and (learned is None or learned.phase > SCENARIO.phases.index(phase))
    assert bool(leaks(SCENARIO, Performance([note]))) == expected


def test_what_differs_is_counted_by_agent_and_not_by_time() -> None:
    performance = answering(SCENARIO)
    later = Performance(sorted(performance.works, key=lambda work: work.agent))
    assert differing(performance, later) == 0
    place, question = asked("private")
    assert differing(changed(place, question.expected + " "), performance) == 1
    assert differing(performance, Performance(performance.works[:-2])) == 2
