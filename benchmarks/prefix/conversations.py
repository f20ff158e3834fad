"""The scenarios: what a client sends turn by turn, and what is generated. The same for the same seed.

Answers reach the client as text, and come back as text: nobody sends tokens.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from benchmarks.prefix import passages
from benchmarks.prefix.vocabularies import Vocabulary
from inference_service.domain import MessagesInput
from inference_service.text.prompt import Rendered


@dataclass(frozen=True)
class Step:
    """A prompt, whether it is raw text, and the tokens that are generated behind it."""

    prompt: Rendered
    raw: bool
    generated: tuple[int, ...]


@dataclass
class Chat:
    """A chat as its client holds it: messages, and what comes next from `random`."""

    vocabulary: Vocabulary
    random: Random
    rate: float
    reasoning: bool = False
    strips: bool = False

    def __post_init__(self) -> None:
        self.messages: list[tuple[str, str]] = [("system", passages.message(self.random, 2))]

    def user(self) -> None:
        """The user says something."""
        self.messages.append(("user", passages.message(self.random, self.random.randrange(1, 3))))

    def answered(self) -> Step:
        """The chat as it is sent, and what the model says; not yet part of the chat's messages: see `heard`."""
        renderer = self.vocabulary.reasoning if self.reasoning else self.vocabulary.plain
        chat = MessagesInput(tuple({"role": role, "content": text} for role, text in self.messages))
        text = passages.answer(self.random, self.random.randrange(1, 4))
        if self.reasoning:
            text = f"<think>\n{passages.message(self.random, 2)}\n</think>\n\n{text}"
        limit = self.random.randrange(40, 160) if self.random.random() < 0.25 else None
        said = self.vocabulary.answer(text, self.random, self.rate, limit)
        self.heard = said.text.strip() if self.strips else said.text
        return Step(
            renderer.messages(chat, generation_prompt=True, parse_special=False), raw=False, generated=said.token_ids
        )

    def exchange(self) -> Step:
        """The user says something, and the answer becomes part of the chat."""
        self.user()
        step = self.answered()
        self.messages.append(("assistant", self.heard))
        return step


def continued(vocabulary: Vocabulary, random: Random, rate: float) -> Iterator[Step]:
    """A chat that goes on, through a client that sends back the text it got."""
    chat = Chat(vocabulary, random, rate)
    for _ in range(6):
        yield chat.exchange()


def stripped(vocabulary: Vocabulary, random: Random, rate: float) -> Iterator[Step]:
    """The same, through a client that strips white space from answers."""
    chat = Chat(vocabulary, random, rate, strips=True)
    for _ in range(6):
        yield chat.exchange()


def reasoning(vocabulary: Vocabulary, random: Random, rate: float) -> Iterator[Step]:
    """A chat whose template drops the reasoning of earlier answers."""
    chat = Chat(vocabulary, random, rate, reasoning=True)
    for _ in range(6):
        yield chat.exchange()


def edited(vocabulary: Vocabulary, random: Random, rate: float) -> Iterator[Step]:
    """After three exchanges the user edits an earlier message, which drops all that followed it, and goes on."""
    chat = Chat(vocabulary, random, rate)
    for _ in range(3):
        yield chat.exchange()
    for _ in range(2):
        at = random.choice([at for at, (role, _) in enumerate(chat.messages) if role == "user"])
        text = chat.messages[at][1]
        cut = random.randrange(len(text) + 1)
        chat.messages[at:] = [("user", text[:cut] + passages.passage(random)[:30] + text[cut:])]
        yield chat.answered()
        chat.messages.append(("assistant", chat.heard))
        yield chat.exchange()


def regenerated(vocabulary: Vocabulary, random: Random, rate: float) -> Iterator[Step]:
    """Each answer but the first is dropped once, and asked for again."""
    chat = Chat(vocabulary, random, rate)
    yield chat.exchange()
    for _ in range(3):
        chat.user()
        yield chat.answered()
        yield chat.answered()
        chat.messages.append(("assistant", chat.heard))


def raw_with_answers(vocabulary: Vocabulary, random: Random, rate: float) -> Iterator[Step]:
    """A raw prompt that grows by what was generated, cut off anywhere, and by text that goes on in the middle of it."""
    text = passages.message(random, 3)
    for _ in range(6):
        said = vocabulary.answer(passages.answer(random, 2), random, rate, random.randrange(30, 200))
        generated = said.token_ids
        if generated[-1] in vocabulary.tokenizer.eos_ids:
            generated = generated[:-1]
        yield Step(vocabulary.plain.text(text, parse_special=False), raw=True, generated=generated)
        more = passages.passage(random)
        text += said.text + more[random.randrange(len(more)) :]


def raw_growing(vocabulary: Vocabulary, random: Random, rate: float) -> Iterator[Step]:  # noqa: ARG001
    """A raw prompt that grows by its own text, cut anywhere; nothing is generated."""
    text = "\n\n".join(passages.message(random, 2) for _ in range(6))
    cuts = sorted(random.sample(range(100, len(text)), 6))
    for cut in cuts:
        yield Step(vocabulary.plain.text(text[:cut], parse_special=False), raw=True, generated=())


Scenario = Callable[[Vocabulary, Random, float], Iterator[Step]]

SCENARIOS: Mapping[str, Scenario] = {
    "continued": continued,
    "stripped": stripped,
    "reasoning": reasoning,
    "edited": edited,
    "regenerated": regenerated,
    "raw with answers": raw_with_answers,
    "raw growing": raw_growing,
}
