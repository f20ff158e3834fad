"""Generated multi-agent dialogues: facts are told, filler goes by, and questions ask for what was told.

Deterministic, with the right answers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypedDict

from benchmarks.demo_model.filler import ACKNOWLEDGEMENT, SMALL_TALK, count_tokens, filler_sentence, filler_text
from benchmarks.demo_model.world import AGENTS, ENTITIES, KINDS, Fact, Kind, is_held_out, unknown_answer

Split = Literal["train", "heldout"]

MAX_FACTS = 64
UNKNOWN_SHARE = 0.3
SPARSE_SHARE = 0.3
"""Share of the longer dialogues that are mostly filler; in the others facts and questions are dense."""
_OPENERS = ("", "", "", "", "Remember that ", "Please note that ", "By the way, ", "I heard that ", "Noted, ")
_FRAME_TOKENS = 5
"""Tokens around a message's text: <|im_start|>, the role, a newline, <|im_end|>, a newline."""
_FACT_TOKENS, _QUESTION_TOKENS = 25, 27
"""Mean tokens of a fact and of a question, replies included."""


class Message(TypedDict):
    """A chat message as chat templates take it."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question of the dialogue. `messages[index]` asks it and `messages[index + 1]` holds the expected answer."""

    index: int
    kind: str
    known: bool
    expected: str


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Messages in order, the right assistant messages included, and where the questions are. Ends with an answer."""

    messages: list[Message]
    questions: list[Question]


class _Turn(NamedTuple):
    """A user message, the right reply, and for questions what was asked."""

    text: str
    reply: str
    asked: Kind | None = None
    known: bool = False

    @property
    def tokens(self) -> int:
        return 2 * _FRAME_TOKENS + count_tokens(self.text) + count_tokens(self.reply)


def make_dialogue(seed: int, target_tokens: int, facts: int | None = None, split: Split = "heldout") -> Dialogue:
    """A dialogue of at most `target_tokens` tokens with the chat template's, and less than 40 fewer. "heldout" pairs of
    entity and value never occur in "train". Raises ValueError."""
    rng = random.Random(f"{split}/{seed}/{target_tokens}/{facts}")
    messages: list[Message] = []
    if rng.random() < 0.8:
        messages.append({"role": "system", "content": f"You are {rng.choice(AGENTS)}."})
    budget = target_tokens - 1 - sum(_FRAME_TOKENS + count_tokens(message["content"]) for message in messages)

    most = min(MAX_FACTS, max(2, target_tokens // 40))
    if target_tokens >= 512 and rng.random() < SPARSE_SHARE:
        most = max(3, most // 8)
    told = rng.randint(max(1, most // 3), most) if facts is None else facts
    if facts is None:
        told = max(1, min(told, (budget - _QUESTION_TOKENS) // (2 * _FACT_TOKENS)))
    asked = max(1, min(rng.randint(told, 3 * told), (budget - told * _FACT_TOKENS) // _QUESTION_TOKENS))
    turns = _facts_and_questions(rng, told, asked, split)
    while sum(turn.tokens for turn in turns) > budget:
        if asked == 1 and (told == 1 or facts is not None):
            raise ValueError(f"{told} facts and a question don't fit into {target_tokens} tokens")
        if facts is None:
            told = max(1, told * 9 // 10)
        asked = max(1, asked * 9 // 10)
        turns = _facts_and_questions(rng, told, asked, split)
    _insert_filler(rng, turns, budget - sum(turn.tokens for turn in turns))

    questions = []
    for turn in turns:
        if turn.asked is not None:
            questions.append(Question(len(messages), turn.asked.name, turn.known, turn.reply))
        messages.append({"role": "user", "content": turn.text})
        messages.append({"role": "assistant", "content": turn.reply})
    return Dialogue(messages, questions)


def _facts_and_questions(rng: random.Random, told: int, asked: int, split: Split) -> list[_Turn]:
    """Mostly of one or two kinds: where each fact is of its own kind, a model learns to look for the kind alone."""
    kinds = rng.sample(KINDS, rng.choice((1, 1, 1, 1, 2, len(KINDS))))
    if sum(len(kind.entities) for kind in kinds) < 2 * told:
        kinds = list(KINDS)
    pool = [(kind, entity) for kind in kinds for entity in kind.entities]
    facts = [_draw_fact(rng, kind, entity, split) for kind, entity in rng.sample(pool, told)]
    groups = _groups(rng, facts)
    bursts = _bursts(rng, asked, len(groups))

    turns: list[_Turn] = []
    known: dict[str, Fact] = {}
    unasked: list[Fact] = []
    for group, burst in zip([[], *groups], bursts, strict=True):
        if group:
            turns.append(_telling(rng, group))
            known.update((fact.entity, fact) for fact in group)
            unasked.extend(group)
        for _ in range(burst):
            if known and rng.random() >= UNKNOWN_SHARE:
                fresh = unasked and rng.random() < 0.8
                fact = unasked.pop(rng.randrange(len(unasked))) if fresh else rng.choice(list(known.values()))
                turns.append(_question(rng, fact.kind, fact.entity, fact.answer, known=True))
            else:
                later = [(fact.kind, fact.entity) for fact in facts if fact.entity not in known]
                kind, entity = _never_told(rng, known, later if rng.random() < 0.15 else [], pool)
                turns.append(_question(rng, kind, entity, unknown_answer(kind, entity), known=False))
    return turns


def _groups(rng: random.Random, facts: list[Fact]) -> list[list[Fact]]:
    groups = []
    start = 0
    while start < len(facts):
        size = rng.choice((1, 1, 1, 2, 2, 3))
        groups.append(facts[start : start + size])
        start += size
    return groups


def _bursts(rng: random.Random, asked: int, groups: int) -> list[int]:
    bursts = [0] * (groups + 1)
    position = groups
    while asked:
        size = min(asked, rng.choice((1, 1, 2, 3, 4)))
        bursts[position] += size
        asked -= size
        position = max(rng.randint(0, groups), rng.randint(0, groups))
    return bursts


def _draw_fact(rng: random.Random, kind: Kind, entity: str, split: Split) -> Fact:
    while True:
        value = rng.choice(kind.values)
        if is_held_out(kind, entity, value) == (split == "heldout"):
            return Fact(kind, entity, value)


def _speaker(rng: random.Random, share: float) -> str:
    return f"{rng.choice(AGENTS)}: " if rng.random() < share else ""


def _enumerate(clauses: list[str]) -> str:
    if len(clauses) == 1:
        return clauses[0]
    return ", ".join(clauses[:-1]) + ", and " + clauses[-1]


def _telling(rng: random.Random, facts: list[Fact]) -> _Turn:
    clauses = _enumerate([fact.clause for fact in facts])
    if rng.random() < 0.15:
        parts = [f"Noted, {clauses}."]
    else:
        openers = [rng.choice(_OPENERS) for _ in facts]
        parts = [f"{o}{fact.clause}." if o else fact.answer for o, fact in zip(openers, facts, strict=True)]
    if rng.random() < 0.3:
        parts.insert(rng.randint(0, len(parts)), filler_sentence(rng))
    return _Turn(_speaker(rng, 0.5) + " ".join(parts), f"Noted, {clauses}.")


def _never_told(
    rng: random.Random, known: dict[str, Fact], later: list[tuple[Kind, str]], pool: list[tuple[Kind, str]]
) -> tuple[Kind, str]:
    if later:
        return rng.choice(later)
    while True:
        kind, entity = rng.choice(pool if rng.random() < 0.8 else ENTITIES)
        if entity not in known:
            return kind, entity


def _question(rng: random.Random, kind: Kind, entity: str, reply: str, known: bool) -> _Turn:
    return _Turn(_speaker(rng, 0.25) + rng.choice(kind.questions).format(e=entity), reply, kind, known)


def _insert_filler(rng: random.Random, turns: list[_Turn], budget: int) -> None:
    while budget >= 40:
        kind, entity = rng.choice(ENTITIES)
        draw = rng.random()
        if draw < 0.1:
            text, reply = rng.choice(list(SMALL_TALK.items()))
            turn = _Turn(text, reply)
        elif draw < 0.2:
            turn = _Turn(_speaker(rng, 1.0) + unknown_answer(kind, entity), ACKNOWLEDGEMENT)
        else:
            most = min(40, budget // 14 - 1)
            turn = _Turn(_speaker(rng, 0.3) + filler_text(rng, rng.randint(1, max(1, most))), ACKNOWLEDGEMENT)
        if turn.tokens <= budget:
            turns.insert(rng.randint(0, len(turns) - 1), turn)
            budget -= turn.tokens
