"""Prompts of exactly so many tokens, as ids and as text, which differ from their first tokens on."""

import random
from pathlib import Path

from tokenizers import Tokenizer

NEW_TOKENS = 50
_FIRST_ID, _LAST_ID = 8, 899
"""Every model of the benchmarks has these ids, and none of them ends a turn."""
_WORDS = (
    "the boat is green and key in cellar by sea who told you that remember colour of house red nobody knows".split()
)
_ENDS = (".", ",", "?")


def token_ids(tokens: int, seed: object) -> list[int]:
    return random.Random(f"{seed}").choices(range(_FIRST_ID, _LAST_ID + 1), k=tokens)


class Prompts:
    def __init__(self, directory: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    def text(self, tokens: int, seed: object) -> str:
        """Return English words that are tokenized into exactly so many. Raises ValueError."""
        rng, text, left = random.Random(f"{seed}"), "", tokens
        sizes = {f" {word}": self._count(f" {word}") for word in _WORDS}
        while left:
            fitting = [word for word, size in sizes.items() if size <= left]
            if not fitting:
                text += "".join(_ENDS[i % len(_ENDS)] for i in range(left))
                break
            word = rng.choice(fitting)
            text, left = text + word, left - sizes[word]
        if (found := self._count(text)) != tokens:
            raise ValueError(
                f"the tokenizer makes {found} tokens of a text that should have {tokens}; take another number"
            )
        return text

    def ids_of(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _count(self, text: str) -> int:
        return len(self.ids_of(text))
