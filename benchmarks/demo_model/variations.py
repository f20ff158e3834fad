"""Dialogues as users and agents have them: in a row, in lower case, with ids and dates, and with other text.

Each variation is made of a dialogue of `dialogues.py`; answers stay as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

from benchmarks.demo_model.dialogues import Dialogue, Message, Question, Split, make_dialogue
from benchmarks.demo_model.filler import ACKNOWLEDGEMENT
from benchmarks.demo_model.prompts import system_prompt
from benchmarks.demo_model.tokenizer import COMMON_WORDS, render

Variation = Literal["row", "lower", "system", "other"]
VARIATIONS: tuple[Variation, ...] = get_args(Variation)
_COMMON = tuple(COMMON_WORDS.split())


def vary(
    seed: int,
    target_tokens: int,
    variations: tuple[Variation, ...],
    count: Callable[[str], int],
    split: Split = "heldout",
) -> Dialogue:
    """Return a dialogue of at most `target_tokens` tokens, counted by `count`. Variations:

    row     replies are left out
    lower   user messages are in lower case, some without their last mark
    system  system prompts have ids and dates; some are between other messages
    other   users write what is not of the world, which is acknowledged
    """
    rng = random.Random(f"{split}/{seed}/{target_tokens}/{variations}")
    target = target_tokens
    room = min(target_tokens // 2, target_tokens - 96)
    prompts, others = list[str](), list[str]()
    for variation, texts, frames in (("system", prompts, 6), ("other", others, 18)):
        for _ in range(rng.randint(1, min(6, max(1, target_tokens // 256))) if variation in variations else 0):
            text = system_prompt(rng, split, _COMMON)
            cost = count(text) + frames
            if cost <= room:
                texts.append(text)
                room, target = room - cost, target - cost
    dialogue = _with_others(rng, make_dialogue(seed, target, split=split), others)
    if "row" in variations:
        dialogue = _in_a_row(rng, dialogue)
    if prompts:
        dialogue = _with_prompts(rng, dialogue, prompts)
    if "lower" in variations:
        lowered = _in_lower_case(rng, dialogue)
        if count(render(lowered.messages)) <= target_tokens:
            dialogue = lowered
    return dialogue


def _with_others(rng: random.Random, dialogue: Dialogue, others: list[str]) -> Dialogue:
    messages, questions = dialogue.messages, dialogue.questions
    for text in others:
        at = rng.choice([index for index, message in enumerate(messages) if message["role"] == "user"])
        said: list[Message] = [{"role": "user", "content": text}, {"role": "assistant", "content": ACKNOWLEDGEMENT}]
        messages = [*messages[:at], *said, *messages[at:]]
        questions = [replace(question, index=question.index + 2 * (question.index >= at)) for question in questions]
    return Dialogue(messages, questions)


def _in_a_row(rng: random.Random, dialogue: Dialogue) -> Dialogue:
    """Leave out replies, never the last. Some messages without one become the system's, or a line of the next."""
    share = rng.choice((0.2, 0.5, 0.5, 0.8, 0.8, 1.0))
    by_system, joined = rng.choice((0.0, 0.0, 0.1, 0.3)), rng.choice((0.0, 0.0, 0.2, 0.5))
    messages, questions = list[Message](), []
    asked = {question.index: question for question in dialogue.questions}
    last, lines = len(dialogue.messages) - 1, list[str]()
    for index, message in enumerate(dialogue.messages):
        if message["role"] == "user":
            dropped = index + 1 < last and rng.random() < share
            if dropped and _is_joinable(dialogue.messages, index, asked) and rng.random() < joined:
                lines.append(message["content"])
                continue
            content, lines = "\n".join((*lines, message["content"])), []
            if not dropped and index in asked:
                questions.append(replace(asked[index], index=len(messages)))
            role = "system" if dropped and rng.random() < by_system else "user"
            messages.append({"role": role, "content": content})
        elif message["role"] == "system" or not dropped:
            messages.append(message)
    if [message["role"] for message in messages[:2]] == ["system", "system"]:
        merged: Message = {"role": "system", "content": f"{messages[0]['content']} {messages[1]['content']}"}
        messages[:2] = [merged]
        questions = [replace(question, index=question.index - 1) for question in questions]
    return Dialogue(messages, questions)


def _is_joinable(messages: list[Message], index: int, asked: dict[int, Question]) -> bool:
    """Return whether what one replies to a message and the next together is the reply to the next."""
    tells = messages[index + 1]["content"].startswith("Noted, ")
    return index not in asked and (not tells or index + 2 in asked)


def _with_prompts(rng: random.Random, dialogue: Dialogue, prompts: list[str]) -> Dialogue:
    """Put the first prompt at the head and the others before messages of users."""
    messages, questions = dialogue.messages, dialogue.questions
    for number, prompt in enumerate(prompts):
        users = [index for index, message in enumerate(messages) if message["role"] == "user"]
        at = rng.choice(users) if number else 0
        if not number and messages[0]["role"] == "system":
            head = messages[0]["content"]
            facts = head.partition(". ")[2] if head.startswith("You are ") else head
            messages = [{"role": "system", "content": f"{prompt} {facts}".strip()}, *messages[1:]]
            continue
        messages = [*messages[:at], {"role": "system", "content": prompt}, *messages[at:]]
        questions = [replace(question, index=question.index + (question.index >= at)) for question in questions]
    return Dialogue(messages, questions)


def _in_lower_case(rng: random.Random, dialogue: Dialogue) -> Dialogue:
    share, unmarked = rng.choice((1.0, 1.0, 0.5)), rng.choice((0.0, 0.0, 0.5, 1.0))
    messages = list[Message]()
    for message in dialogue.messages:
        text = message["content"]
        if message["role"] == "user" and rng.random() < share:
            text = text.lower()
            text = text[:-1] if rng.random() < unmarked else text
        messages.append({"role": message["role"], "content": text})
    return Dialogue(messages, dialogue.questions)
