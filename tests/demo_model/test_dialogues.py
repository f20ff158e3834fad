"""The generator: the same dialogue by the same arguments, right answers, held-out pairs that training never sees."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.demo_model.dialogues import Dialogue, Split, make_dialogue
from benchmarks.demo_model.world import KINDS, Fact, is_held_out

SEEDS = st.integers(0, 2**40)
FACTS = {
    fact.clause: fact for kind in KINDS for entity in kind.entities for value in kind.values
    for fact in [Fact(kind, entity, value)]
}  # fmt: skip


def told_in(text: str) -> list[Fact]:
    """The facts that a message states, by looking for each sentence that could state one."""
    clauses = re.split(r"[.,?:]\s*(?:and )?|(?:Remember|Please note|I heard) that ", text)
    lowered = [clause[:1].lower() + clause[1:] for clause in clauses]
    return [FACTS[clause] for clause in lowered if clause in FACTS]


def entity_asked(text: str) -> str:
    return next(
        entity for kind in KINDS for entity in kind.entities for question in kind.questions
        if text.endswith(question.format(e=entity))
    )  # fmt: skip


@given(seed=SEEDS, target=st.integers(128, 1200), split=st.sampled_from(["train", "heldout"]))
@settings(max_examples=60, deadline=None)
def test_answers_are_what_the_conversation_told(seed: int, target: int, split: Split) -> None:
    dialogue = make_dialogue(seed, target, split=split)
    told: dict[str, Fact] = {}
    questions = {question.index: question for question in dialogue.questions}
    for index, message in enumerate(dialogue.messages):
        if message["role"] != "user":
            continue
        reply = dialogue.messages[index + 1]["content"]
        if index in questions:
            entity = entity_asked(message["content"])
            assert questions[index].known == (entity in told)
            assert questions[index].expected == reply
            assert reply == told[entity].answer if entity in told else reply.startswith("I do not know ")
            assert entity in reply
        else:
            facts = told_in(message["content"])
            assert told_in(reply) == facts
            assert all(fact.entity not in told for fact in facts), "facts are never corrected"
            told |= {fact.entity: fact for fact in facts}
    assert told
    assert dialogue.questions[-1].index == len(dialogue.messages) - 2


@given(seed=SEEDS, target=st.integers(128, 1200))
@settings(max_examples=60, deadline=None)
def test_held_out_pairs_never_occur_in_training(seed: int, target: int) -> None:
    def stated(dialogue: Dialogue) -> list[Fact]:
        return [fact for message in dialogue.messages for fact in told_in(message["content"])]

    assert all(is_held_out(*fact) for fact in stated(make_dialogue(seed, target, split="heldout")))
    assert not any(is_held_out(*fact) for fact in stated(make_dialogue(seed, target, split="train")))


def test_every_entity_has_held_out_values() -> None:
    for kind in KINDS:
        for entity in kind.entities:
            held = sum(is_held_out(kind, entity, value) for value in kind.values)
            assert 1 <= held <= len(kind.values) // 5


def test_words_name_one_thing() -> None:
    entities = [entity for kind in KINDS for entity in kind.entities]
    values = [value for kind in KINDS for value in kind.values]
    assert len(entities) == len(set(entities))
    assert len(values) == len(set(values))
    assert not set(entities) & set(values)


def test_same_arguments_same_dialogue() -> None:
    assert make_dialogue(5, 512) == make_dialogue(5, 512)
    assert make_dialogue(5, 512) != make_dialogue(6, 512)
    assert make_dialogue(5, 512) != make_dialogue(5, 512, split="train")


@given(seed=SEEDS, target=st.integers(512, 4096), facts=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_as_many_facts_as_asked_for(seed: int, target: int, facts: int) -> None:
    users = [message["content"] for message in make_dialogue(seed, target, facts).messages if message["role"] == "user"]
    assert sum(len(told_in(text)) for text in users) == facts


def test_facts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="don't fit"):
        make_dialogue(0, 128, facts=20)
