"""Long chats in a model's own template: facts are told and asked for, text is read, then each is asked for again.

Two facts of each sort, so that an answer takes the right one. An answer is given up to its value, which a small model
cannot be relied on to phrase.
"""

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks.quality.texts import PROSE, Render, text_of
from inference_service.text.tokenizer import Tokenizer


class _Sort(NamedTuple):
    stem: str
    question: str
    values: Sequence[str]


class _Fact(NamedTuple):
    """A sentence up to its value, the value, and the question for it."""

    stem: str
    value: str
    question: str

    @property
    def sentence(self) -> str:
        return f"{self.stem} {self.value}."


_SORTS: Final = (
    _Sort("{name} lives in", "Where does {name} live?", ("Lisbon", "Vienna", "Chicago", "Madrid", "Dublin")),
    _Sort("{name} works as a", "What does {name} work as?", ("nurse", "teacher", "carpenter", "pilot", "lawyer")),
    _Sort("{name} plays the", "Which instrument does {name} play?", ("cello", "piano", "drums", "flute", "harp")),
    _Sort("{name}'s car is", "What colour is {name}'s car?", ("green", "red", "white", "yellow", "black")),
    _Sort("{name} was born in", "In which month was {name} born?", ("March", "October", "July", "January", "May")),
    _Sort("{name}'s locker has the number", "Which number has {name}'s locker?", ("417", "352", "906", "128")),
)
_NAMES: Final = ("Clara", "Peter", "Olga", "Henry", "Maria", "Victor")
_EACH: Final = 2
_CHARACTERS: Final = range(200, 1200)


@dataclass(frozen=True)
class Chat:
    """Tokens, and where the values among them are that are asked for at the end."""

    token_ids: list[int]
    values: list[range]


def make_chats(count: int, tokens: int, tokenizer: Tokenizer, render: Render) -> list[Chat]:
    """Make chats of at most so many tokens before their last questions. Raises Unavailable and ValueError."""
    prose = text_of(PROSE, render).split("\n\n")
    passages = [" ".join(each.split()) for each in prose if len(each) in _CHARACTERS]
    return [make_chat(seed, tokens, passages, tokenizer, render) for seed in range(count)]


def make_chat(seed: int, tokens: int, passages: Sequence[str], tokenizer: Tokenizer, render: Render) -> Chat:
    """Raises ValueError."""
    rng = random.Random(seed)
    facts = _facts(rng)
    asked = rng.sample(facts, len(facts))
    start = rng.randrange(len(passages))
    told = [message for fact in facts for message in _turn(f"Please remember this: {fact.sentence}", fact.sentence)]
    told += [message for fact in facts for message in _turn(fact.question, fact.sentence)]
    read = [
        message
        for passage in [*passages[start:], *passages[:start]]
        for message in _turn(f"Please read this passage:\n\n{passage}", "I have read the passage.")
    ]
    again = [message for fact in asked for message in _turn(fact.question, fact.sentence)]

    def encoded(messages: Sequence[dict[str, str]], answer: str | None = None) -> list[int]:
        return tokenizer.encode(render(messages, answer is not None) + (answer or ""), parse_special=True)

    def up_to(passages: int) -> list[dict[str, str]]:
        return [*told, *read[: 2 * passages]]

    def size(passages: int) -> int:
        return len(encoded(up_to(passages)))

    count = bisect_right(range(1, len(passages) + 1), tokens, key=size)
    if not count:
        raise ValueError(f"{tokens} tokens are too few for a chat with all facts and a passage")
    before = up_to(count)
    chat = Chat(encoded([*before, *again]), [])
    for number, fact in enumerate(asked):
        question = [*before, *again[: 2 * number + 1]]
        stem, whole = encoded(question, fact.stem), encoded(question, f"{fact.stem} {fact.value}")
        if whole[: len(stem)] != stem or chat.token_ids[: len(whole)] != whole:
            raise ValueError("the model's template or tokenizer changes what stands before a value")
        chat.values.append(range(len(stem), len(whole)))
    return chat


def _facts(rng: random.Random) -> list[_Fact]:
    found = []
    for sort in _SORTS:
        names, values = rng.sample(_NAMES, _EACH), rng.sample(sort.values, _EACH)
        found += [
            _Fact(sort.stem.format(name=name), value, sort.question.format(name=name))
            for name, value in zip(names, values, strict=True)
        ]
    rng.shuffle(found)
    return found


def _turn(user: str, assistant: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
