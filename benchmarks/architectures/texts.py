"""What is read: held-out dialogues of the demo model's world as tokens, cut where a turn would begin."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.demo_model.dialogues import Dialogue, make_dialogue
from benchmarks.demo_model.tokenizer import END, START, render

FIRST_SEED = 3_000_000
"""Not those that training was checked on."""
_ROLE_TOKENS = 3
"""<|im_start|>, the role, a newline."""


@dataclass(frozen=True)
class Text:
    """A dialogue. `token_ids[:split]` is prefilled, the rest is decoded token by token.

    `spoken` are the positions of what the assistant says, in order: its words and the end token, which the models were
    trained on. `answers` are those of one answer to a question each, as ranges [first, end) of positions.
    """

    length: int
    token_ids: list[int]
    split: int
    spoken: list[int]
    answers: list[tuple[int, int]]

    def prefilled(self, position: int) -> bool:
        """Whether the logits that predict this position come from prefill."""
        return position <= self.split


def make_texts(directory: Path, counts: dict[int, int], decoded: int) -> list[Text]:
    """Dialogues by length in tokens, of which about `decoded` tokens at the end are for decoding.

    They are tokenized by the directory's tokenizer.json, as in training: for some model types transformers puts its own
    rules in the place of that file's, and reads "417" as three tokens where the model has learned one.
    """
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return [
        make_text(make_dialogue(FIRST_SEED + number, length), length, decoded, encode)
        for length, count in counts.items()
        for number in range(count)
    ]


def make_text(dialogue: Dialogue, length: int, decoded: int, encode: Callable[[str], list[int]]) -> Text:
    """One dialogue. The cut is before the user's message from which at least `decoded` tokens are left."""
    token_ids = encode(render(dialogue.messages))
    [start], [end] = encode(START), encode(END)
    starts = [position for position, token in enumerate(token_ids) if token == start]
    asked = {question.index + 1 for question in dialogue.questions}
    spans = {
        number: (first + _ROLE_TOKENS, token_ids.index(end, first) + 1)
        for number, first in enumerate(starts)
        if dialogue.messages[number]["role"] == "assistant"
    }
    cuts = [starts[number] for number, message in enumerate(dialogue.messages) if message["role"] == "user"]
    return Text(
        length,
        token_ids,
        max([cut for cut in cuts if cut <= len(token_ids) - decoded] or cuts[:1]),
        [position for first, behind in spans.values() for position in range(first, behind)],
        [spans[number] for number in sorted(asked)],
    )


def check(texts: Sequence[Text]) -> None:
    """Raise ValueError for lengths of which nothing is prefilled or nothing decoded."""
    for text in texts:
        if not 1 < text.split < len(text.token_ids) - 1:
            raise ValueError(f"a dialogue of {text.length} tokens is too short to be cut; take longer ones")
        assert all(first < behind for first, behind in pairwise(text.spoken))
