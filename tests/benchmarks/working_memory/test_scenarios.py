"""Scenarios of the working memory benchmark: what their oracle says is what the workflow's text gives."""

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.demo_model import filler, world
from benchmarks.working_memory.scenarios import ASKED, JUDGE, Scenario, make_scenario
from gateway.workflows.definition.schema import Definition

scenarios = st.builds(make_scenario, agents=st.integers(3, 12), tokens=st.just(60), seed=st.integers(0, 1000))


@given(scenarios)
@settings(max_examples=15, deadline=None)
def test_agents_can_know_exactly_what_reaches_them(scenario: Scenario) -> None:
    """Read from the file alone, by brute force: the text that each agent ever sees, phase by phase."""
    seen: dict[str, str] = {name: "" for name in (*scenario.agents, JUDGE)}
    for phase in scenario.definition["phases"]:
        for step in _steps(phase):
            said = {}
            for speaker, _ in step:
                prompt = phase["prompts"].get(speaker, "")
                seen[speaker] += f"\n{prompt}"
                said[speaker] = _reply(prompt, seen[speaker])
            for speaker, meant in step:
                seen[speaker] += f"\n{said[speaker]}"
                for listener in _listeners(phase, speaker, meant):
                    seen[listener] += f"\n{said[speaker]}"
        for agent in scenario.agents:
            told = {fact for fact in scenario.facts if re.search(rf"\b{fact.value}\b", seen[agent])}
            assert told == scenario.could_know(agent, phase["name"])


@given(scenarios)
@settings(max_examples=15, deadline=None)
def test_questions_expect_what_can_be_known(scenario: Scenario) -> None:
    told = {fact.entity: fact for fact in scenario.facts}
    prompts = {phase["name"]: phase.get("prompts", {}) for phase in scenario.definition["phases"]}
    for question in scenario.questions:
        fact = told.get(question.entity)
        assert prompts[question.phase][question.agent] in [
            text.format(e=question.entity) for text in question.kind.questions
        ]
        assert question.known == (fact in scenario.could_know(question.agent, question.phase))
        assert question.expected == (
            fact.answer if fact and question.known else world.unknown_answer(question.kind, question.entity)
        )
        assert question.how != "withheld" or fact is not None
    asked = [(question.agent, question.entity) for question in scenario.questions]
    assert len(asked) == len(set(asked)) == len(ASKED) * len(scenario.agents)


@given(scenarios)
@settings(max_examples=20, deadline=None)
def test_they_are_workflows_of_held_out_facts(scenario: Scenario) -> None:
    definition = Definition.model_validate(scenario.definition)
    assert [phase.name for phase in definition.phases] == scenario.phases
    assert all(world.is_held_out(*fact) for fact in scenario.facts)
    assert len({fact.value for fact in scenario.facts}) == len({fact.entity for fact in scenario.facts})


def test_no_value_is_a_word_of_other_text() -> None:
    """So a value in an answer is from a fact, and from no other one."""
    values = [value.casefold() for kind in world.KINDS for value in kind.values]
    phrases = [*filler.SUBJECTS, *filler.VERBS, *filler.TOPICS, *filler.TIMES, *filler.REMARKS, *filler.SMALL_TALK]
    texts = [text for kind in world.KINDS for text in (kind.statement, kind.unknown, *kind.questions, *kind.entities)]
    words = set(re.findall(r"\w+", " ".join((*phrases, *texts, *filler.SMALL_TALK.values())).casefold()))
    assert len(set(values)) == len(values)
    assert not words & set(values)


def _steps(phase: dict[str, Any]) -> list[list[tuple[str, list[str]]]]:
    """Return who speaks to whom, in steps of those who speak together."""
    agents, to = phase["agents"], phase.get("to", {})
    turns = [(agent, to.get(agent, [each for each in agents if each != agent])) for agent in agents]
    match phase["topology"]:
        case "all_at_once":
            return [turns]
        case "round_robin":
            return [[turn] for turn in turns]
        case "pairs":
            return [[(a, [b]) for a, b in phase["pairs"]], [(b, [a]) for a, b in phase["pairs"]]]
    raise AssertionError(phase["topology"])


def _listeners(phase: dict[str, Any], speaker: str, meant: list[str]) -> list[str]:
    present = [*phase["agents"], *phase.get("listeners", [])]
    return [each for each in present if each != speaker and (phase["channel"] == "public" or each in meant)]


def _reply(prompt: str, seen: str) -> str:
    """Return what one says who has read `seen`, and forgets nothing."""
    for kind in world.KINDS:
        for entity in kind.entities:
            if prompt in [question.format(e=entity) for question in kind.questions]:
                stated = re.escape(kind.statement.format(e=entity, v="VALUE")).replace("VALUE", r"(\w+)")
                found = re.search(stated, seen, re.IGNORECASE)
                return world.Fact(kind, entity, found[1]).answer if found else world.unknown_answer(kind, entity)
    return f"Noted, {prompt}"
